"""Every form SGLang prints is read to the right values; anything else is no batch."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter import sglang_log
from exporter.records import Batch, EventKind, Mode, Refusal
from exporter.sglang.batch_fields import FIELDS
from exporter.sglang.batch_line import BatchLine, Figures, take_apart
from exporter.sglang.process_title import ranks_named
from exporter.sglang_log import (
    ArgsLine,
    CapacityLine,
    EventLine,
    is_wanted,
    parse_line,
    storable,
)
from tests.journal_export import DATA, REAL_JOURNALS, real_journal

DECODE = (
    "[2026-11-30 08:50:23 PP3 TP0] Decode batch, #running-req: 8, #token: 2700, token usage: 0.08, "
    "cuda graph: True, gen throughput (token/s): 416.58, #queue-req: 2"
)
PREFILL = (
    "[2026-11-30 08:50:23 PP3 TP0] Prefill batch, #new-seq: 3, #new-token: 124, #cached-token: 7, "
    "token usage: 0.08, #running-req: 11, #queue-req: 0, #pending-token: 5, cuda graph: False, "
    "input throughput (token/s): 646.81"
)


def json_lines(name: str) -> list[dict]:
    text = (DATA / "sglang_lines" / name).read_text()
    return [json.loads(line) for line in text.split("\n") if line]


def batch(message: str) -> BatchLine:
    parsed = parse_line(message)
    assert isinstance(parsed, BatchLine), (message, parsed)
    return parsed


def behind_the_bracket(message: str) -> str:
    prefix = sglang_log._PREFIX.match(message)
    assert prefix is not None
    return message[prefix.end() :]


# --- what SGLang prints ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", json_lines("constructed.jsonl"), ids=lambda case: case["line"][:40]
)
def test_a_constructed_line_means_what_its_writer_says(case):
    expected = dict(case["expected"])
    line = batch(case["line"])
    parts = take_apart(behind_the_bracket(case["line"]))
    assert parts is not None
    found = {"kind": line.mode.value, "fields": parts.values()}
    found |= {kind.lower(): rank for kind, rank in ranks_named(line.rank_text).items()}
    stamp = re.match(r"\[([-0-9:. ]*[0-9])", case["line"])
    if stamp:
        found["ts"] = stamp[1]
    if parts.iteration is not None:
        found["iter"] = line.figures.forward_iteration
    if parts.mixed_running is not None:
        found["mixed_running"] = line.figures.running_reqs
    gpu = expected.pop("gpu", None)  # the GPU of a 2024 form is no rank
    assert found == expected
    assert gpu is None or f"[gpu={gpu}] " in case["line"]


@pytest.mark.parametrize("form", ["as_printed", "bracket", "journald"])
def test_lines_of_sglangs_own_code_leave_no_token_over_and_read_back(form):
    for case in json_lines("executed.jsonl"):
        message = case["message"]
        parts = take_apart(message)
        assert parts is not None, message
        assert parts.render() == message
        assert len(parts.values()) == len(parts.fields), message
        assert parts.mode.value == case["kind"]
        if form == "bracket":
            message = f"[2026-01-01 00:00:00 PP1] {message}"
        if form == "journald":  # it strips trailing blanks
            message = f"[2026-01-01 00:00:00.123 PP1] {message}".rstrip()
        line = batch(message)
        assert line.figures.unknown_fields == 0
        assert line.figures == batch(message).figures


def test_figures_are_the_batch_records_own_fields():
    begin = Batch._fields.index("running_reqs")
    assert list(Batch._fields[begin:]) == [*Figures._fields, "verified"]


@pytest.mark.parametrize("journal", REAL_JOURNALS)
def test_every_batch_line_of_a_real_journal_reads_to_its_printed_values(journal):
    """The values are found here a second way, by one loose expression for each field."""

    def printed(pattern: str, text: str, convert=int):
        match = re.search(pattern + r": ([-0-9.]+)", text)
        return None if match is None else convert(match[1])

    count = 0
    for entry in real_journal(journal):
        text = entry["MESSAGE"].decode()
        if not re.match(r"\[[^]]*\] (Decode|Prefill) batch", text):
            continue
        count += 1
        line = batch(text)
        figures = line.figures
        assert line.mode is (Mode.DECODE if "Decode" in text else Mode.PREFILL)
        assert line.rank_text == " " + entry["_CMDLINE"].decode().removeprefix("sglang::scheduler_")
        assert figures.running_reqs == printed("#running-req", text)
        assert figures.queued_reqs == printed("#queue-req", text)
        assert figures.new_seqs == printed("#new-seq", text)
        assert figures.new_tokens == printed("#new-token", text)
        assert figures.cached_tokens == printed("#cached-token", text)
        assert figures.pending_tokens == printed("#pending-token", text)
        assert figures.token_usage_ratios == {"kv": printed("token usage", text, float)}
        rate = printed(r"gen throughput \(token/s\)", text, float)
        assert figures.gen_throughput_tokens_per_second == rate
        assert figures.graph is False
        iteration = re.search(r"batch \[(\d+)\]", text)
        assert figures.forward_iteration == (int(iteration[1]) if iteration else None)
        assert figures.unknown_fields == 0
        assert storable(text) == text
    assert count == {"pp8_default": 408, "pp4_mmb8_i41": 220, "pp4_burst_i7_iters": 500}[journal]


def test_percentages_become_ratios_and_nan_is_not_known():
    line = f"{DECODE}, fwd occupancy: nan%, fwd+idle occupancy: 74.00%"
    for _ in range(2):
        figures = batch(line).figures
        assert figures.forward_occupancy_ratio is None
        assert figures.forward_idle_occupancy_ratio == 0.74
    busy = line.replace("nan%", "71.25%")
    assert batch(busy).figures.forward_occupancy_ratio == 0.7125
    assert batch(DECODE.replace("0.08", "nan")).figures.token_usage_ratios == {}
    assert batch(DECODE.replace("416.58", "inf")).figures.gen_throughput_tokens_per_second is None


def test_pools_are_named_in_every_spelling():
    pools = "full token usage: 0.40, swa token usage: 0.08, mamba usage: 0.12"
    new = DECODE.replace("token usage: 0.08", pools)
    old = DECODE.replace(
        "#token: 2700, token usage: 0.08", "#token: full=9, swa=7, token usage: full=0.09, swa=0.01"
    )
    assert batch(new).figures.token_usage_ratios == {"full": 0.40, "swa": 0.08, "mamba": 0.12}
    assert batch(old).figures.token_usage_ratios == {"full": 0.09, "swa": 0.01}


@pytest.mark.parametrize("graph", ["cuda", "cpu", "npu", "musa"])
def test_the_graph_flag_is_read_on_every_device(graph):
    for _ in range(2):
        assert batch(DECODE.replace("cuda graph", f"{graph} graph")).figures.graph is True
        assert batch(PREFILL.replace("cuda graph", f"{graph} graph")).figures.graph is False


def test_unknown_fields_are_ignored_and_counted():
    for _ in range(2):
        figures = batch(f"{DECODE}, #new-thing: 5, other thing (ms): 1.5e3").figures
        assert figures.unknown_fields == 2
        assert figures._replace(unknown_fields=0) == batch(DECODE).figures
    assert batch(f"{DECODE}, note: two words").figures.unknown_fields == 1


@pytest.mark.parametrize("tail", ["", ",", ", ", " "])
@pytest.mark.parametrize("separator", [",", "."])
@pytest.mark.parametrize("iteration", ["", " [40961]"])
def test_separators_and_ends_of_all_versions_are_tolerated(tail, separator, iteration):
    message = DECODE.replace("Decode batch,", f"Decode batch{iteration}{separator}") + tail
    for _ in range(2):
        assert batch(message).figures.queued_reqs == 2
        assert batch(message).figures.forward_iteration == (40961 if iteration else None)


@pytest.mark.parametrize(
    ("bracket", "ranks"),
    [
        ("[2026-11-30 08:50:23]", {}),
        ("[08:50:23 TP1]", {"TP": 1}),
        ("[2026-11-30 08:50:23 DP3 TP3]", {"DP": 3, "TP": 3}),
        ("[2026-11-30 08:50:23 TP0 PP3]", {"TP": 0, "PP": 3}),
        ("[2026-11-30 08:50:23.123 DP1 PP0 ATTN_CP2 MOE_DP4 TP5 EP6]",
         {"DP": 1, "PP": 0, "ATTN_CP": 2, "MOE_DP": 4, "TP": 5, "EP": 6}),
        ("(Scheduler pid=123, ip=10.0.0.4) [2026-11-30 08:50:23 PP12]", {"PP": 12}),
        ("(Scheduler pid=123) [2026-11-30 08:50:23 PP1]", {"PP": 1}),
    ],
)  # fmt: skip
def test_ranks_are_found_by_name_in_the_leading_bracket(bracket, ranks):
    message = bracket + DECODE[DECODE.index("]") + 1 :]
    for _ in range(2):
        assert ranks_named(batch(message).rank_text) == ranks
        assert batch(message).stamped


def test_a_line_without_a_bracket_is_told_apart():
    assert not batch(behind_the_bracket(DECODE)).stamped
    assert batch("[gpu=0] " + behind_the_bracket(DECODE)).stamped
    assert batch("[gpu_id=3] " + behind_the_bracket(DECODE)).stamped


# --- what is refused ---------------------------------------------------------------------------

MALFORMED = {
    "cut_in_half": DECODE[: len(DECODE) // 2],
    "cut_in_the_header": DECODE[: DECODE.index("batch") + 5],
    "cut_in_a_fraction": PREFILL[:-1],
    "cut_in_a_flag": PREFILL[: PREFILL.index("alse")],
    "without_a_field_all_versions_print": DECODE.replace("#queue-req: 2", "#queue-rex: 2"),
    "key_twice": f"{DECODE}, #running-req: 8",
    "unknown_key_twice": f"{DECODE}, x: 1, x: 1",
    "huge_number": DECODE.replace("2700", "9" * 16),
    "huge_number_of_a_million_digits": DECODE.replace("2700", "9" * 1_000_000),
    "hexadecimal": DECODE.replace("2700", "0x1F"),
    "underscores": DECODE.replace("2700", "2_700"),
    "exponent": DECODE.replace("416.58", "4e2"),
    "plus_sign": DECODE.replace("2700", "+2700"),
    "fraction_for_a_count": DECODE.replace("2700", "2700.00"),
    "count_for_a_fraction": DECODE.replace("416.58", "416"),
    "three_decimals": DECODE.replace("416.58", "416.580"),
    "arabic_digits": DECODE.replace("2700", "\u0662\u0667\u0660\u0660"),
    "fullwidth_digits": DECODE.replace("2700", "\uff12\uff17\uff10\uff10"),
    "lower_case_flag": DECODE.replace("True", "true"),
    "number_for_a_flag": DECODE.replace("True", "1"),
    "percent_missing": f"{DECODE}, fwd occupancy: 71.25",
    "spaces_doubled": DECODE.replace(", #token", ",  #token"),
    "newline_inside": DECODE.replace(", #token", ",\n#token"),
    "tab_inside": DECODE.replace(", #token", ",\t#token"),
    "line_separator_inside": DECODE.replace(", #token", ",\u2028#token"),
    "null_inside": DECODE.replace("True", "True\0"),
    "escape_inside": DECODE.replace("True", "\x1b[31mTrue"),
    "newline_at_the_end": f"{DECODE}\n",
    "text_behind": f"{DECODE} and more",
    "letters_in_the_iteration": DECODE.replace("batch,", "batch [x1],"),
    "too_many_fields": DECODE + "".join(f", x{n}: 1" for n in range(60)),
    "too_long": f"{DECODE}, x: " + "y" * 5000,
    "a_value_without_a_key": f"{DECODE}, hello",
}


@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_line_with_our_header_and_another_rest_is_malformed(message):
    batch(DECODE)
    batch(PREFILL)
    assert parse_line(message) is Refusal.MALFORMED
    assert storable(message) is None
    assert is_wanted(message.encode())


GLUED = {
    "in_json": json.dumps({"level": "INFO", "message": DECODE}),
    "behind_a_line_separator": f"[2026-11-30 08:50:23] Receive: obj='x\u2028{DECODE}",
    "behind_a_next_line": f"hello\x85{DECODE}",
    "behind_a_newline": f"hello\n{DECODE}",
    "behind_a_carriage_return": f"hello\r{DECODE}",
    "behind_a_blank": f" {DECODE}",
    "behind_a_priority": f"<3>{DECODE}",
    "behind_a_byte_order_mark": f"\ufeff{DECODE}",
    "behind_a_color": f"\x1b[32m{DECODE}",
    "behind_a_log_level": f"INFO:root:{DECODE}",
    "two_brackets": f"[2026-11-30 08:50:23 PP0] {DECODE}",
    "behind_another_lines_start": f"[2026-11-30 08:50:23 PP0] Load {DECODE}",
    "two_lines_in_one": f"{DECODE}{DECODE}",
    "two_lines_with_separator": f"{DECODE}\u2028{PREFILL}",
    "in_the_value_of_a_field": f"{DECODE}, note: {behind_the_bracket(DECODE)}",
    "in_a_rank": DECODE.replace("PP3", "PP3]"),
    "in_a_request_log": f"Receive: obj=GenerateReqInput(rid='1', text='why does {DECODE} say 8?')",
    "in_an_exception": f"[2026-11-30 08:50:23 PP1] Scheduler hit an exception: {DECODE}",
    "in_server_args": f"[2026-11-30 08:50:23] server_args={{'model_path': '{DECODE}'}}",
    "wrong_ray_tag": f"(a b c) {DECODE}",
    "bad_stamp": DECODE.replace("[2026-", "[20x6-"),
    "arabic_stamp": DECODE.replace("[2026-", "[\u0662\u0660\u0662\u0666-"),
    "lower_case_rank": DECODE.replace("PP3", "pp3"),
    "five_digit_rank": DECODE.replace("PP3", "PP12345"),
    "other_prefix": DECODE.replace("PP3 TP0", "encode_server"),
}


@pytest.mark.parametrize("message", GLUED.values(), ids=GLUED.keys())
def test_a_batch_line_inside_other_text_is_glued(message):
    assert parse_line(message) is Refusal.GLUED
    assert storable(message) is None
    assert is_wanted(message.encode())


@pytest.mark.parametrize(
    "message",
    [
        "",
        DECODE.replace("Decode batch", "Decode rank batch"),
        PREFILL.replace("Prefill batch", "Prefill rank batch"),
        DECODE.replace("Decode batch", "Decode batches"),
        DECODE.replace("Decode", "decode"),
        "[2026-11-30 08:50:23 PP0] Capture cuda graph begin. This can take up to several minutes.",
        "[PP Dynamic Chunk] [PP0] Profiled 3 chunks",
        "What is a Decode batch? I saw a Prefill batch in the log.",
        "[2026-11-30 08:50:23] DetokenizerManager hit an exception: Traceback",
        "[2026-11-30 08:50:23] TokenizerManager watchdog timeout (self.watchdog_timeout=300)",
        '[2026-11-30 08:50:23] INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
    ],
)
def test_a_near_twin_or_a_mention_is_none_of_ours(message):
    assert parse_line(message) is None
    assert storable(message) is None


# --- other lines -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        ("The server is fired up and ready to roll!", EventKind.FIRED_UP, None),
        ("Decode out of memory happened. #retracted_reqs: 3, #new_token_ratio: 0.59 -> 0.80",
         EventKind.RETRACTION, 3),
        ("KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.1 -> 1.0",
         EventKind.RETRACTION, 1),
        ("KV cache pool is full. Retract requests. #retracted_reqs: 12, #new_tokens_gained: 646, "
         "#mamba_num_gained: 1, #new_token_ratio: 0.0980 -> 0.3487", EventKind.RETRACTION, 12),
        ("Testing retraction. #retracted_reqs: 1, #new_tokens_gained: 6", EventKind.RETRACTION, 1),
        ("Scheduler hit an exception: Traceback (most recent call last):",
         EventKind.SCHEDULER_EXCEPTION, None),
        ("Watchdog timeout (self.watchdog_timeout=300)", EventKind.WATCHDOG, None),
        ("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
         EventKind.WATCHDOG, None),
    ],
)  # fmt: skip
def test_an_event_is_read(text, kind, count):
    message = f"[2026-11-30 08:50:23 PP3] {text}"
    assert parse_line(message) == EventLine(kind, " PP3", True, count)
    assert is_wanted(message.encode())
    kept = storable(message)
    assert kept is not None
    assert parse_line(kept) == parse_line(message)


def test_the_capacity_line_is_read():
    message = (
        "[2026-11-30 08:50:21 PP5] max_total_num_tokens=32768, chunked_prefill_size=None, "
        "max_prefill_tokens=16384, max_running_requests=2048, context_len=8192, "
        "available_gpu_mem=18.33 GB"
    )
    facts = {
        "max_total_num_tokens": 32768,
        "chunked_prefill_size": None,
        "max_prefill_tokens": 16384,
        "max_running_requests": 2048,
        "context_len": 8192,
    }
    assert parse_line(message) == CapacityLine(facts, " PP5", True)
    kept = storable(message)
    assert kept is not None
    assert parse_line(kept) == parse_line(message)
    assert parse_line(message.replace("=2048", "=many")) is Refusal.MALFORMED
    assert parse_line(f"{message}, max_running_requests=1") is Refusal.MALFORMED


@pytest.mark.parametrize(
    "text",
    [
        "server_args={'pp_size': 8}",
        "max_total_num_tokens=32768, max_running_requests=2048",
        "The server is fired up and ready to roll!",
        "KV cache pool is full. Retract requests. #retracted_reqs: 1",
    ],
)
def test_an_event_inside_other_text_is_glued(text):
    assert parse_line(f"hello\u2028[2026-11-30 08:50:23] {text}") is Refusal.GLUED
    assert parse_line(json.dumps({"message": text})) is Refusal.GLUED


def test_arguments_that_cannot_be_read_are_malformed():
    assert parse_line("[2026-11-30 08:50:23] server_args=ServerArgs(pp_size") is Refusal.MALFORMED


# --- what may be kept --------------------------------------------------------------------------

SECRET = "tell-nobody"  # noqa: S105 - a made-up one


@pytest.mark.parametrize(
    "message",
    [
        f"{DECODE}, {SECRET}: 5",
        f"{DECODE}, note: {SECRET}",
        f"({SECRET} pid=1) {DECODE}",
        f"[2026-11-30 08:50:23 PP3] Scheduler hit an exception: {SECRET}",
        f"[2026-11-30 08:50:23 PP3] Scheduler hit an exception:\n{SECRET}",
        f"[2026-11-30 08:50:23 PP3] KV cache pool is full. Retract requests. #retracted_reqs: 1, {SECRET}",
        f"[2026-11-30 08:50:23 PP3] Watchdog timeout (self.watchdog_timeout=300) {SECRET}",
        f"[2026-11-30 08:50:23] server_args={{'pp_size': 8, 'api_key': '{SECRET}'}}",
        f"[2026-11-30 08:50:23] server_args=ServerArgs(pp_size=8, api_key='{SECRET}')",
        f"[2026-11-30 08:50:23] server_args={{'pp_size': 8, 'api_key': 'x', 'chat_template': '{SECRET}'}}",
        f"[2026-11-30 08:50:23] max_total_num_tokens=1, max_running_requests=1, x={SECRET}",
    ],
)
def test_only_fixed_words_and_numbers_are_kept(message):
    kept = storable(message)
    assert kept is not None
    assert SECRET not in kept
    before, after = parse_line(message), parse_line(kept)
    if isinstance(before, BatchLine) and isinstance(after, BatchLine):
        before = before._replace(figures=before.figures._replace(unknown_fields=0))
    assert after == before
    assert storable(kept) == kept


def test_arguments_are_parsed_from_both_spellings():
    for text in ("server_args={'pp_size': 8}", "server_args=ServerArgs(pp_size=8)"):
        assert parse_line(f"[2026-11-30 08:50:23] {text}") == ArgsLine({"pp_size": 8}, True)


# --- any text ----------------------------------------------------------------------------------

pieces = st.sampled_from(
    ["[2026-11-30 08:50:23 PP3 TP0] ", "Decode batch", "Prefill batch", ", ", ". ", ": ", " [12]",
     "#running-req", "#queue-req", "gen throughput (token/s)", "#new-seq", "#new-token", "0.25", "7",
     "#cached-token", "token usage", "True", "nan", "%", "\u2028", "\n", "server_args=", "{'pp_size'",
     "}", "ServerArgs(", "max_total_num_tokens=", "#retracted_reqs: ", "(", ")", "'", '"', "\\"]
)  # fmt: skip
texts = st.one_of(
    st.text(),
    st.lists(pieces, max_size=40).map("".join),
    st.lists(st.one_of(pieces, st.text(max_size=4))).map("".join),
)


@settings(max_examples=400)
@given(texts)
def test_any_text_is_read_without_an_exception(text):
    parsed = parse_line(text)
    assert parsed == parse_line(text)
    assert parsed == sglang_log._parse_slowly(text)
    accepted = parsed is not None and not isinstance(parsed, Refusal)
    assert (storable(text) is not None) == accepted
    if accepted or (isinstance(parsed, Refusal) and "batch" in text):
        assert is_wanted(text.encode("utf-8", "replace"))


@pytest.mark.parametrize("field", [field for field in FIELDS.values() if field.plain])
@settings(max_examples=50)
@given(st.data())
def test_what_a_layout_takes_as_it_stands_some_server_can_print(field, data):
    raw = data.draw(st.from_regex(re.compile(field.plain, re.ASCII), fullmatch=True))
    assert field.can_be(field.kind.plain_figure(raw))
    assert field.kind.plain_figure(raw) == field.kind.figure(raw)


def test_learned_layouts_are_bounded():
    for number in range(2 * sglang_log.MAX_LAYOUTS):
        word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        batch(f"{DECODE}, {word}: 1")
    assert len(sglang_log._layouts) <= sglang_log.MAX_LAYOUTS
