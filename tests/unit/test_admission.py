"""Who may say what: each way to forge a line is refused, each true line counts."""

from __future__ import annotations

from collections import Counter

import pytest

from exporter.admission import MAX_PLACES, Admission
from exporter.records import (
    Batch,
    EventKind,
    LogLine,
    Mode,
    Record,
    Refusal,
    RefusedLine,
    ServerEvent,
    ServerFacts,
)
from exporter.sglang.process_title import Role, role_of
from tests.journal_export import REAL_JOURNALS, real_journal

SERVER = "kimi"
MAIN = "/opt/venv/bin/python -m sglang.launch_server --pp-size 8"
SPAWNED = '/opt/sglang/bin/python -c "from multiprocessing.spawn import spawn_main; spawn_main()"'
HELPER = "sglang::detokenizer"
STAGE = "sglang::scheduler_PP3"
KEY = "sk-hidden-4711"
BODY = (
    "Decode batch, #running-req: 8, #token: 2700, token usage: 0.08, cuda graph: True, "
    "gen throughput (token/s): 416.58, #queue-req: 2"
)
PREFILL_BODY = (
    "Prefill batch, #new-seq: 3, #new-token: 124, #cached-token: 7, token usage: 0.08, "
    "#running-req: 11, #queue-req: 0, #pending-token: 5, cuda graph: False"
)
CAPACITY = "max_total_num_tokens=32768, max_running_requests=64, context_len=8192"
FIRED_UP = "The server is fired up and ready to roll!"
RETRACTION = (
    "KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_token_ratio: 0.1 -> 1.0"
)
EXCEPTION = "Scheduler hit an exception: Traceback (most recent call last):"
WATCHDOG = "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"


def args(**arguments: object) -> str:
    return f"server_args={arguments!r}"


class Log:
    """Feeds an admission line by line, a second apart."""

    def __init__(self, **usual: object) -> None:
        self.admission = Admission()
        self.now = 1_796_028_573.0
        self.usual = usual

    def line(self, text: str, ranks: str = "", **more: object) -> LogLine:
        self.now += 1.0
        prefix = f"[2026-11-30 08:50:23{ranks}] "
        line = LogLine(SERVER, self.now, prefix + text)
        return line._replace(**{**self.usual, **more})

    def admit(self, text: str, ranks: str = "", **more: object) -> Record | None:
        return self.admission.admit(self.line(text, ranks, **more))

    def batch(self, text: str = BODY, ranks: str = " PP3", **more: object) -> Batch:
        record = self.admit(text, ranks, **more)
        assert isinstance(record, Batch), record
        return record

    def facts(self, text: str, ranks: str = "", **more: object) -> ServerFacts:
        record = self.admit(text, ranks, **more)
        assert isinstance(record, ServerFacts), record
        return record

    def refusal(self, text: str, ranks: str = "", **more: object) -> Refusal:
        record = self.admit(text, ranks, **more)
        assert isinstance(record, RefusedLine), record
        return record.reason


# --- batches: whose ----------------------------------------------------------------------------


def test_a_schedulers_line_counts_as_verified():
    log = Log()
    line = log.line(BODY, " PP3", title=STAGE, pid=4242)
    assert log.admission.admit(line) == Batch(
        server=SERVER,
        logged_at=line.logged_at,
        mode=Mode.DECODE,
        dp_rank=0,
        pp_rank=3,
        tp_rank=0,
        pid=4242,
        running_reqs=8,
        queued_reqs=2,
        token_usage_ratios={"kv": 0.08},
        gen_throughput_tokens_per_second=416.58,
        graph=True,
        verified=True,
    )


def test_a_prefill_line_counts():
    record = Log().batch(PREFILL_BODY, title=STAGE)
    assert (record.mode, record.new_seqs, record.new_tokens) == (Mode.PREFILL, 3, 124)
    assert (record.cached_tokens, record.pending_tokens, record.running_reqs) == (7, 5, 11)


def test_a_line_of_an_unknown_process_counts_as_unverified():
    record = Log().batch()
    assert (record.verified, record.pp_rank) == (False, 3)


@pytest.mark.parametrize(
    "title", [MAIN, SPAWNED, HELPER, "sglang::server", "bash", "", "sglang::schedulers"]
)
@pytest.mark.parametrize("text", [BODY, PREFILL_BODY, CAPACITY, RETRACTION, EXCEPTION, WATCHDOG])
def test_a_schedulers_line_from_another_process_is_refused(title, text):
    assert Log().refusal(text, " PP3", title=title) is Refusal.NOT_SCHEDULER


@pytest.mark.parametrize(
    ("ranks", "title", "place"),
    [
        (" PP3", "sglang::scheduler_PP3", (0, 3, 0)),
        (" TP1 PP3", "sglang::scheduler_TP1_PP3", (0, 3, 1)),
        (" PP3 TP1", "sglang::scheduler_PP3_TP1", (0, 3, 1)),
        (" DP2 PP1 ATTN_CP0 MOE_DP3 TP4 EP4", "sglang::scheduler_DP2_PP1_ATTN_CP0_MOE_DP3_TP4_EP4", (2, 1, 4)),
        ("", "sglang::scheduler", (0, 0, 0)),
        ("", "sglang::scheduler_DP2_PP3_TP1", (2, 3, 1)),
        (" PP3", "sglang::scheduler_DP2_PP3_TP1", (2, 3, 1)),
        (" TP1", "sglang::scheduler", (0, 0, 1)),
        (" DP1 TP0", "sglang::scheduler", (1, 0, 0)),
    ],
)  # fmt: skip
def test_ranks_come_from_text_and_title(ranks, title, place):
    record = Log().batch(BODY, ranks, title=title)
    assert (record.dp_rank, record.pp_rank, record.tp_rank) == place


@pytest.mark.parametrize(
    ("ranks", "title"),
    [
        (" PP2", "sglang::scheduler_PP3"),
        (" PP3 TP1", "sglang::scheduler_PP3_TP0"),
        (" PP3 TP1", "sglang::scheduler_PP3"),
        (" DP1 PP3", "sglang::scheduler_PP3"),
        (" PP3 EP2", "sglang::scheduler_PP3_EP1"),
        (" PP3 XX2", "sglang::scheduler_PP3"),
        (" PP3", "sglang::scheduler_TP3"),
        (" PP3", "sglang::scheduler"),
        (" TP0 PP1", "sglang::scheduler"),
        (" PP3 PP3", "sglang::scheduler_PP3"),
        (" PP3 PP4", "sglang::scheduler_PP3"),
    ],
)
@pytest.mark.parametrize("text", [BODY, CAPACITY, RETRACTION])
def test_ranks_that_differ_from_the_titles_are_refused(ranks, title, text):
    assert Log().refusal(text, ranks, title=title) is Refusal.RANK_MISMATCH


def test_a_line_without_sglangs_bracket_counts_only_from_a_known_scheduler():
    bare = LogLine(SERVER, 1.0, BODY, title=STAGE)
    record = Admission().admit(bare)
    assert isinstance(record, Batch)
    assert record.pp_rank == 3
    assert Admission().admit(bare._replace(title=None)) == RefusedLine(
        SERVER, 1.0, Refusal.UNVERIFIABLE
    )


@pytest.mark.parametrize("text", [BODY, CAPACITY, RETRACTION, FIRED_UP, args(pp_size=2)])
def test_once_schedulers_are_known_a_line_of_an_unknown_process_is_refused(text):
    log = Log()
    log.facts(CAPACITY, " PP3", title=STAGE)
    assert log.refusal(text) is Refusal.UNVERIFIABLE
    log.usual = {"launch": "second"}
    assert log.refusal(text) is Refusal.UNVERIFIABLE


def test_one_servers_schedulers_say_nothing_of_another_server():
    log = Log()
    log.batch(title=STAGE)
    assert not log.batch(server="other").verified


def test_an_entry_forged_by_the_main_process_after_a_newline_is_refused():
    """A tool parser's warning prints the model's newline, so its rest begins a journal entry."""
    log = Log(title=MAIN, pid=1)
    assert log.admit("Model attempted to call undefined function: x") is None
    assert log.refusal(BODY, " PP0") is Refusal.NOT_SCHEDULER
    log.facts(args(pp_size=8))
    log.admit(FIRED_UP)
    assert log.refusal(args(pp_size=2)) is Refusal.REPEATED_ARGS


def test_a_batch_line_behind_other_text_is_refused():
    log = Log(title=STAGE)
    assert log.refusal(f"Receive: text='x\u2028[2026-11-30 08:50:23 PP3] {BODY}") is Refusal.GLUED
    assert log.refusal(BODY.replace("8,", "8,\n", 1), " PP3") is Refusal.MALFORMED


@pytest.mark.parametrize(
    ("title", "role"),
    [
        (None, Role.UNKNOWN),
        ("sglang::scheduler", Role.SCHEDULER),
        ("sglang::scheduler ", Role.SCHEDULER),
        ("sglang::scheduler_DP1_PP0_ATTN_CP0_TP4_EP4", Role.SCHEDULER),
        ("sglang::scheduler"[:15], Role.OTHER),
        (" sglang::scheduler_PP3", Role.OTHER),
        ("sglang::tokenizer_worker:12", Role.OTHER),
        ("sglang::data_parallel_controller", Role.OTHER),
        ("sglang::server", Role.MAIN),
        (MAIN, Role.MAIN),
        ("/usr/bin/sglang serve --model-path /m", Role.MAIN),
        (SPAWNED, Role.OTHER),
        ("/usr/bin/python evil.py", Role.OTHER),
        ("", Role.OTHER),
    ],
)
def test_a_title_names_a_role(title, role):
    assert role_of(title) is role


# --- bounds ------------------------------------------------------------------------------------


def test_a_rank_beyond_the_known_size_is_refused():
    log = Log()
    log.facts(args(pp_size=8, tp_size=2, dp_size=2), title=MAIN, pid=1)
    log.batch(BODY, " DP1 PP7 TP1", title="sglang::scheduler_DP1_PP7_TP1")
    for ranks in (" DP2 PP7 TP1", " DP1 PP8 TP1", " DP1 PP7 TP2"):
        title = "sglang::scheduler" + ranks.replace(" ", "_")
        assert log.refusal(BODY, ranks, title=title) is Refusal.RANK_OUT_OF_BOUNDS


@pytest.mark.parametrize("ranks", [" PP64", " PP9999", " DP4096", " TP4096"])
def test_ranks_of_unknown_processes_are_bounded_without_facts(ranks):
    assert Log().refusal(BODY, ranks) is Refusal.RANK_OUT_OF_BOUNDS


def test_lines_of_unknown_processes_make_a_bounded_number_of_stages():
    log = Log()
    for stage in range(8):
        log.batch(BODY, f" PP{stage}")
    records = [log.admit(BODY, f" DP{dp} PP{pp}") for dp in range(64) for pp in range(64)]
    assert sum(isinstance(record, Batch) for record in records) == 64
    assert {record.reason for record in records if isinstance(record, RefusedLine)} == {
        Refusal.RANK_OUT_OF_BOUNDS
    }
    log.batch(BODY, " PP7")


@pytest.mark.parametrize("title", [None, "sglang::scheduler"])
def test_a_replica_that_only_the_text_names_is_refused_where_there_is_one(title):
    log = Log()
    log.facts(args(pp_size=1, dp_size=1), title=None if title is None else MAIN)
    assert log.refusal(BODY, " DP1", title=title) is Refusal.RANK_OUT_OF_BOUNDS
    log.batch(BODY, "", title=title)


def test_a_replica_behind_a_router_may_have_any_dp_rank():
    """SGLANG_DP_RANK numbers servers whose own dp_size is 1."""
    log = Log()
    log.facts(args(pp_size=8, dp_size=1), title=MAIN, pid=1)
    assert log.batch(BODY, " DP5 PP3", title="sglang::scheduler_DP5_PP3").dp_rank == 5


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("#running-req: 8", "#running-req: 65537"),
        ("#running-req: 8", "#running-req: -1"),
        ("#running-req: 8", "#running-req: 999999999999999"),
        ("#queue-req: 2", "#queue-req: 10000001"),
        ("#queue-req: 2", "#queue-req: -2"),
        ("token usage: 0.08", "token usage: 1.06"),
        ("token usage: 0.08", "token usage: -0.01"),
        ("token usage: 0.08", "full token usage: 0.08, swa token usage: 7.00"),
        ("token usage: 0.08", "full token usage: 0.08, mamba usage: 7.00"),
        ("#token: 2700, token usage: 0.08", "#token: full=1, swa=1, token usage: full=0.08, swa=9.00"),
        ("416.58", "999999999999.00"),
        ("416.58", "-1.00"),
        ("#queue-req: 2", "#queue-req: 2, accept len: 1025.00"),
        ("#queue-req: 2", "#queue-req: 2, fwd occupancy: 106.00%"),
        ("#queue-req: 2", "#queue-req: 2, fwd+idle occupancy: -1.00%"),
        ("#queue-req: 2", "#queue-req: 2, #retracted-req: -1"),
    ],
)  # fmt: skip
def test_a_value_no_server_can_print_is_refused(old, new):
    log = Log(title=STAGE)
    log.batch()
    for _ in range(2):
        assert log.refusal(BODY.replace(old, new), " PP3") is Refusal.VALUE_OUT_OF_BOUNDS


@pytest.mark.parametrize("new", ["1.00", "1.05", "-0.00", "nan"])
def test_a_share_may_pass_one_by_rounding(new):
    usage = Log().batch(BODY.replace("0.08", new)).token_usage_ratios
    assert usage == ({} if new == "nan" else {"kv": abs(float(new))})
    assert "-" not in repr(usage)


def test_running_requests_are_bounded_by_what_the_schedulers_said():
    log = Log(title=STAGE)
    log.facts(CAPACITY, " PP3")
    log.batch(BODY.replace("#running-req: 8", "#running-req: 64"))
    assert (
        log.refusal(BODY.replace("#running-req: 8", "#running-req: 65"), " PP3")
        is Refusal.VALUE_OUT_OF_BOUNDS
    )
    many = PREFILL_BODY.replace("#new-seq: 3", "#new-seq: 65")
    assert log.refusal(many, " PP3") is Refusal.VALUE_OUT_OF_BOUNDS


def test_a_scheduler_that_is_known_is_judged_anew_once_the_limits_change():
    log = Log(title=STAGE)
    for _ in range(2):
        log.batch()
    log.admission.learn(ServerFacts(SERVER, log.now, {"pp_size": 3}, "configuration"))
    assert log.refusal(BODY, " PP3") is Refusal.RANK_OUT_OF_BOUNDS


def test_a_scheduler_that_is_known_may_not_name_other_ranks():
    log = Log(title=STAGE)
    log.batch()
    assert log.refusal(BODY, " PP2") is Refusal.RANK_MISMATCH
    assert log.refusal(BODY, " PP3", title="sglang::detokenizer") is Refusal.NOT_SCHEDULER
    assert log.refusal(BODY, " PP3", title=None) is Refusal.UNVERIFIABLE


def test_titles_without_end_fill_no_memory():
    log = Log()
    for number in range(2 * MAX_PLACES):
        log.batch(title=f"sglang::scheduler_PP3 {number}")
    assert len(log.admission._servers[SERVER].places) == MAX_PLACES


def test_the_largest_capacity_of_all_stages_bounds():
    log = Log()
    for rank, most in enumerate((32, 64, 48)):
        text = CAPACITY.replace("=64", f"={most}")
        facts = log.facts(text, f" PP{rank}", title=f"sglang::scheduler_PP{rank}")
        assert (facts.origin, facts.facts["max_running_requests"]) == ("capacity_line", most)
    log.batch(BODY.replace("#running-req: 8", "#running-req: 64"), title=STAGE)


def test_capacity_cannot_be_forged_from_inside_a_scheduler_that_serves():
    log = Log(title=STAGE)
    log.facts(CAPACITY, " PP3")
    log.batch()
    assert log.refusal(CAPACITY.replace("=64", "=1"), " PP3") is Refusal.REPEATED_ARGS
    log.batch()


@pytest.mark.parametrize("most", [0, -1, 65_537])
def test_a_capacity_no_server_has_is_refused(most):
    text = CAPACITY.replace("=64", f"={most}")
    assert Log(title=STAGE).refusal(text, " PP3") is Refusal.VALUE_OUT_OF_BOUNDS


def test_facts_of_an_unknown_process_after_the_first_batch_inform_but_do_not_bind():
    log = Log()
    log.batch()
    assert log.facts(args(pp_size=1)).facts == {"pp_size": 1}
    log.facts(CAPACITY.replace("=64", "=1"), " PP3")
    log.batch()


def test_a_larger_capacity_of_an_unknown_process_widens_the_bound():
    log = Log()
    log.facts(CAPACITY, " PP3")
    log.batch()
    log.facts(CAPACITY.replace("=64", "=128"), " PP3")
    log.batch(BODY.replace("#running-req: 8", "#running-req: 128"))
    log.facts(CAPACITY.replace("=64", "=1"), " PP3")
    log.batch(BODY.replace("#running-req: 8", "#running-req: 128"))


def test_configured_sizes_win_and_stay():
    log = Log(title=MAIN)
    log.admission.learn(ServerFacts(SERVER, 0.0, {"pp_size": 4}, "configuration"))
    log.facts(args(pp_size=8), launch="first", pid=1)
    log.facts(args(pp_size=8), launch="second", pid=2)
    assert log.refusal(BODY, " PP4", title="sglang::scheduler_PP4") is Refusal.RANK_OUT_OF_BOUNDS
    log.batch(title=STAGE)


def test_sizes_of_a_recording_hold_until_the_server_says_otherwise():
    log = Log()
    log.admission.learn(ServerFacts(SERVER, 0.0, {"pp_size": 4, "tp_size": None}, "recording"))
    assert log.refusal(BODY, " PP4", title="sglang::scheduler_PP4") is Refusal.RANK_OUT_OF_BOUNDS
    log.facts(args(pp_size=8), title=MAIN, pid=1)
    log.batch(BODY, " PP4", title="sglang::scheduler_PP4")


# --- arguments and launches --------------------------------------------------------------------


def test_arguments_count_from_the_main_process_only():
    for title in (STAGE, HELPER, SPAWNED, "/usr/bin/python evil.py"):
        assert Log().refusal(args(pp_size=2), title=title) is Refusal.NOT_MAIN
        assert Log().refusal(FIRED_UP, title=title) is Refusal.NOT_MAIN
    for title in (MAIN, "sglang::server", None):
        facts = Log().facts(args(pp_size=2, api_key=KEY), title=title)
        assert (facts.facts, facts.origin, facts.new_launch) == (
            {"pp_size": 2},
            "server_args",
            False,
        )


@pytest.mark.parametrize("launch", [None, "first"])
@pytest.mark.parametrize("title", [None, MAIN])
def test_the_first_arguments_of_a_launch_win(launch, title):
    log = Log(launch=launch, title=title, pid=1)
    log.facts(args(pp_size=4))
    assert log.refusal(args(pp_size=2)) is Refusal.REPEATED_ARGS
    log.admit(FIRED_UP)
    assert log.refusal(args(pp_size=2)) is Refusal.REPEATED_ARGS
    stage = None if title is None else STAGE
    assert log.batch(title=stage).pp_rank == 3


@pytest.mark.parametrize("launch", [None, "first"])
@pytest.mark.parametrize("title", [None, MAIN])
def test_arguments_after_fired_up_are_refused_though_none_were_seen(launch, title):
    log = Log(launch=launch, title=title, pid=1)
    assert isinstance(log.admit(FIRED_UP), ServerEvent)
    assert log.refusal(args(pp_size=2)) is Refusal.REPEATED_ARGS


def test_arguments_after_a_batch_of_the_same_launch_are_refused():
    log = Log(launch="first")
    log.batch(title=STAGE)
    assert log.refusal(args(pp_size=2), title=MAIN, pid=1) is Refusal.REPEATED_ARGS


def test_another_invocation_is_a_new_launch():
    log = Log(launch="first", title=MAIN, pid=1)
    assert not log.facts(args(pp_size=8)).new_launch
    log.admit(FIRED_UP)
    log.usual = {"launch": "second", "title": MAIN, "pid": 2}
    facts = log.facts(args(pp_size=2))
    assert (facts.new_launch, facts.facts) == (True, {"pp_size": 2})
    assert log.refusal(BODY, " PP3", title=STAGE) is Refusal.RANK_OUT_OF_BOUNDS


def test_a_new_launch_without_arguments_is_announced_by_its_first_facts():
    log = Log(launch="first", title=STAGE)
    log.batch()
    log.usual = {"launch": "second", "title": STAGE}
    assert log.facts(CAPACITY, " PP3").new_launch
    log.usual = {"launch": "second", "title": "sglang::scheduler_PP2"}
    assert not log.facts(CAPACITY, " PP2").new_launch


def test_without_an_invocation_another_main_process_is_a_new_launch():
    log = Log(title=MAIN)
    assert not log.facts(args(pp_size=8), pid=1).new_launch
    log.admit(FIRED_UP, pid=1)
    assert log.refusal(args(pp_size=8), pid=1) is Refusal.REPEATED_ARGS
    assert log.facts(args(pp_size=4), pid=2).new_launch
    assert log.refusal(args(pp_size=4), pid=2) is Refusal.REPEATED_ARGS


def test_where_nothing_tells_a_restart_the_first_arguments_stay():
    log = Log()
    log.facts(args(pp_size=4))
    assert log.refusal(args(pp_size=8)) is Refusal.REPEATED_ARGS
    assert log.refusal(BODY, " PP4") is Refusal.RANK_OUT_OF_BOUNDS


# --- events ------------------------------------------------------------------------------------


def test_fired_up_is_an_event_of_the_main_process():
    record = Log().admit(FIRED_UP, title=MAIN, pid=7)
    assert isinstance(record, ServerEvent)
    assert (record.kind, record.pid, record.pp_rank) == (EventKind.FIRED_UP, 7, None)


def test_a_server_fires_up_once_a_launch():
    """The name of a function that the model calls reaches the main process's log, newline and all."""
    log = Log(launch="first", title=MAIN, pid=1)
    assert isinstance(log.admit(FIRED_UP), ServerEvent)
    assert log.refusal(FIRED_UP) is Refusal.REPEATED_ARGS
    assert isinstance(log.admit(FIRED_UP, launch="second", pid=2), ServerEvent)


def test_another_unit_under_the_same_identifier_ends_no_launch():
    log = Log(launch="first")
    log.facts(args(pp_size=8), title=MAIN, pid=1)
    log.batch(title=STAGE)
    assert log.refusal(BODY, title="logger", launch="other") is Refusal.NOT_SCHEDULER
    assert log.refusal(BODY, title=None, launch="other") is Refusal.UNVERIFIABLE
    assert log.refusal(BODY, " PP9", title="sglang::scheduler_PP9") is Refusal.RANK_OUT_OF_BOUNDS


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        (RETRACTION, EventKind.RETRACTION, 2),
        (EXCEPTION, EventKind.SCHEDULER_EXCEPTION, None),
        (WATCHDOG, EventKind.WATCHDOG, None),
    ],
)
@pytest.mark.parametrize("title", [STAGE, None])
def test_an_event_carries_its_schedulers_ranks(text, kind, count, title):
    log = Log(title=title, pid=7)
    line = log.line(text, " PP3")
    assert log.admission.admit(line) == ServerEvent(
        SERVER, line.logged_at, kind, dp_rank=0, pp_rank=3, tp_rank=0, pid=7, count=count
    )


def test_an_impossible_count_of_retractions_is_refused():
    text = RETRACTION.replace("#retracted_reqs: 2", "#retracted_reqs: 999999999")
    assert Log(title=STAGE).refusal(text, " PP3") is Refusal.VALUE_OUT_OF_BOUNDS


# --- looking back for facts --------------------------------------------------------------------


def test_looking_back_yields_facts_only():
    log = Log(launch="first", facts_only=True)
    assert log.facts(args(pp_size=8), title=MAIN, pid=1).facts == {"pp_size": 8}
    log.facts(CAPACITY, " PP3", title=STAGE)
    assert log.admit(BODY, " PP3", title=STAGE) is None
    assert log.admit(FIRED_UP, title=MAIN, pid=1) is None
    assert log.admit(RETRACTION, " PP3", title=STAGE) is None
    assert log.admit(args(pp_size=2), title=MAIN, pid=1) is None
    log.usual = {"launch": "first"}
    assert log.refusal(args(pp_size=2), title=MAIN, pid=1) is Refusal.REPEATED_ARGS
    assert log.refusal(BODY, " PP9", title="sglang::scheduler_PP9") is Refusal.RANK_OUT_OF_BOUNDS
    assert log.refusal(BODY, " PP3") is Refusal.UNVERIFIABLE
    log.batch(title=STAGE)


def test_lines_looked_back_at_and_read_again_are_no_repetition():
    log = Log(launch="first")
    arguments = log.line(args(pp_size=8), title=MAIN, pid=1)
    capacity = log.line(CAPACITY, " PP3", title=STAGE, pid=2)
    fired_up = log.line(FIRED_UP, title=MAIN, pid=1)
    for line in (arguments, capacity, fired_up):
        log.admission.admit(line._replace(facts_only=True))
    assert log.admission.admit(arguments) is None
    assert log.admission.admit(capacity) is None
    assert isinstance(log.admission.admit(fired_up), ServerEvent)


def test_a_backlog_of_the_launch_before_does_not_spoil_the_next():
    log = Log()
    arguments = log.line(args(pp_size=8), title=MAIN, pid=2, launch="second")
    log.admission.admit(arguments._replace(facts_only=True))
    assert log.batch(title=STAGE, launch="first").pp_rank == 3
    record = log.admission.admit(arguments)
    assert isinstance(record, ServerFacts)
    assert record.new_launch


# --- all together ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("journal", "batches", "stages"),
    [("pp8_default", 408, 8), ("pp4_mmb8_i41", 220, 4), ("pp4_burst_i7_iters", 500, 4)],
)
def test_nothing_of_a_real_journal_is_refused(journal, batches, stages):
    assert journal in REAL_JOURNALS
    admission = Admission()
    records = [
        admission.admit(
            LogLine(
                SERVER,
                int(entry["__REALTIME_TIMESTAMP"]) / 1e6,
                entry["MESSAGE"].decode("utf-8", "replace"),
                int(entry["_PID"]),
                entry["_CMDLINE"].decode(),
                "first",
            )
        )
        for entry in real_journal(journal)
        if "MESSAGE" in entry
    ]
    assert Counter(type(record) for record in records if record is not None) == {
        Batch: batches,
        ServerFacts: 1 + stages,
        ServerEvent: 1,
    }
    seen = Counter(record.pp_rank for record in records if isinstance(record, Batch))
    assert seen == dict.fromkeys(range(stages), batches // stages)
    assert all(record.verified for record in records if isinstance(record, Batch))


@pytest.mark.parametrize("spell", ["server_args={%s}", "server_args=ServerArgs(%s)"])
def test_a_key_reaches_no_record(spell):
    equals = "'%s': %r" if "{" in spell else "%s=%r"
    arguments = {"pp_size": 8, "api_key": f"{KEY}, pp_size=9", "model_path": f"/m/{KEY}, pp_size=9"}
    text = spell % ", ".join(equals % pair for pair in arguments.items())
    for line in (text, text[:-1], f"x {text}", text.replace("'", "")):
        record = Log().admit(line, title=MAIN)
        assert KEY not in repr(record)
