"""Whatever is forged through the journal is refused, counted by reason, and changes no series."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from systemd import journal as systemd_journal

from tests.journal_lives import MAIN, MAIN_PID, STAGES, UNIT, decode_line, prefill_line, stamped
from tests.journal_writer import FieldValue, JournalWriter, journal_remote
from tests.journald import SOCKETS, hand_started_journald, logging_process, why_not
from tests.running import PROMETHEUS_ACCEPTS, Metrics, RunningExporter, Series

pytestmark = pytest.mark.skipif(
    journal_remote() is None, reason="systemd-journal-remote is not installed"
)

MAX_RUNNING = 64
ARGS = "server_args={'pp_size': 8, 'tp_size': 1, 'decode_log_interval': 40}"
FORGED_ARGS = "server_args={'pp_size': 64, 'tp_size': 1, 'decode_log_interval': 41}"
FIRED_UP = "The server is fired up and ready to roll!"
RETRACTION = "KV cache pool is full. Retract requests. #retracted_reqs: 7, #new_tokens_gained: 1"
SIDECAR = "/usr/bin/python /opt/health.py"
WORKER = "/usr/bin/python -c from multiprocessing.spawn import spawn_main; spawn_main()"
IN_FLIGHT = "inflight_seconds_total"
CHANGE_BY_THEMSELVES = ("exporter_journal_lag_seconds", "exporter_journal_lines_total")


def capacity(requests: int) -> str:
    return (
        "max_total_num_tokens=32768, chunked_prefill_size=2048, max_prefill_tokens=16384, "
        f"max_running_requests={requests}, context_len=4096, available_gpu_mem=9.52 GB"
    )


@dataclass(frozen=True)
class Entry:
    """An entry of the unit, from a scheduler unless it says otherwise."""

    message: str | bytes
    pp_rank: int = 0
    pid: int | None = None
    cmdline: str | None = None
    transport: str = "stdout"
    fields: Mapping[str, FieldValue] = field(default_factory=dict)

    def write(self, journal: JournalWriter) -> None:
        journal.write(
            self.message,
            pid=self.pid or 200 + self.pp_rank,
            cmdline=self.cmdline or f"sglang::scheduler_PP{self.pp_rank}",
            transport=self.transport,
            **self.fields,
        )


def main(message: str) -> Entry:
    return Entry(message, pid=MAIN_PID, cmdline=MAIN)


def other(message: str | bytes, cmdline: str = SIDECAR, **more: object) -> Entry:
    return Entry(message, pid=900, cmdline=cmdline, **more)  # type: ignore[arg-type]  # its fields


def start_server(journal: JournalWriter) -> None:
    main(stamped(ARGS)).write(journal)
    for rank in range(STAGES):
        Entry(stamped(capacity(MAX_RUNNING), rank), rank).write(journal)
    main(stamped(FIRED_UP)).write(journal)


class Witness:
    """An exporter that reads a server's journal, and what its series do."""

    def __init__(self, exporter: RunningExporter, journal: JournalWriter) -> None:
        self._exporter = exporter
        self._journal = journal
        self._in_flight = 0.0

    def scrape(self, shown: Callable[[Metrics], bool] = lambda _: True) -> Metrics:
        """What is shown once everything written was read, and this holds, too."""
        self._journal.flush()
        return self._exporter.wait_for(
            lambda metrics: (
                metrics.total("exporter_journal_lines_total") == self._journal.written
                and shown(metrics)
            )
        )

    def changes(self, *entries: Entry) -> dict[Series, float]:
        """By how much each series is another after these entries; one that is new, by its value.

        All stages print before them, so that no gauge grows stale in between. The time in flight up
        to there is waited for: it is decided some seconds late.
        """
        for rank in range(STAGES):
            Entry(prefill_line(rank), rank).write(self._journal)
            Entry(decode_line(rank), rank).write(self._journal)
        before = self.scrape(lambda metrics: metrics.total(IN_FLIGHT) > self._in_flight)
        for entry in entries:
            entry.write(self._journal)
        after = self.scrape()
        self._in_flight = after.total(IN_FLIGHT)
        return {
            series: after.get(series, 0.0) - before.get(series, 0.0)
            for series in before.keys() | after.keys()
            if after.get(series) != before.get(series)
            if not series[0].startswith("process_")
            if not series[0].endswith(CHANGE_BY_THEMSELVES)
        }

    def outputs(self) -> dict[str, str]:
        """Everything the exporter says."""
        pages = ("/metrics", "/", "/-/ready", "/-/healthy", "/missing")
        return {page: self._exporter.get(page).text for page in pages} | {
            "openmetrics": self._exporter.get("/metrics", PROMETHEUS_ACCEPTS).text,
            "stderr": self._exporter.said,
        }


def refused(**reasons: int) -> dict[Series, float]:
    name = "sglang_pipeline_exporter_rejected_lines_total"
    return {(name, frozenset({("reason", reason)})): n for reason, n in reasons.items()}


@contextmanager
def witness(folder: Path, journal: JournalWriter) -> Iterator[Witness]:
    args = ["serve", f"--unit={UNIT}", f"--journal-dir={journal.directory}"]
    with RunningExporter([*args, "--from-start", "--no-nvml"], folder) as exporter:
        yield Witness(exporter, journal)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """A server that has started and serves."""
    folder = tmp_path_factory.mktemp("forgery")
    with JournalWriter(folder / "journal") as journal:
        start_server(journal)
        with witness(folder, journal) as running:
            yield running


def test_true_lines_change_what_they_should(served: Witness) -> None:
    """Else the tests below would prove nothing."""
    changed = served.changes(Entry(decode_line(3, running=9), 3), main(stamped("GET /health")))
    of_stages = {series for series in changed if not series[0].endswith(IN_FLIGHT)}
    assert len(changed) == len(of_stages) + 1
    assert {name for name, _ in of_stages} == {
        f"sglang_pipeline_stage_{name}"
        for name in (
            "batches_total",
            "batch_size",
            "batch_requests_bucket",
            "batch_requests_count",
            "batch_requests_sum",
            "graph_batches_total",
            "last_batch_timestamp_seconds",
            "running_requests",
        )
    }
    assert {dict(labels)["pp_rank"] for _, labels in of_stages} == {"3"}


LINE = decode_line(0, running=33, queued=77)
QUOTE = stamped("Capping max_new_tokens of request x", 0)
CUT = {"_LINE_BREAK": "line-max"}
CONTAINER = {"CONTAINER_NAME": "sglang", "CONTAINER_ID_FULL": "c" * 64}

PROCESSES = {
    "main, behind a newline": (
        [main(stamped("Model attempted to call undefined function: x")), main(LINE)],
        refused(not_scheduler=1),
    ),
    "main, as prefill": ([main(prefill_line(0, 9))], refused(not_scheduler=1)),
    "sidecar on stdout": ([other(LINE)], refused(not_scheduler=1)),
    "sidecar named like the server": (
        [other(LINE, cmdline="/usr/bin/python /opt/sglang/health.py")],
        refused(not_scheduler=1),
    ),
    "detokenizer": ([other(LINE, cmdline="sglang::detokenizer")], refused(not_scheduler=1)),
    "near-twin of a title": (
        [other(LINE, cmdline="sglang::schedulers_PP0"), other(LINE, cmdline="xsglang::scheduler")],
        refused(not_scheduler=2),
    ),
    "a title as an argument": (
        [other(LINE, cmdline="/bin/echo sglang::scheduler_PP0")],
        refused(not_scheduler=1),
    ),
    "no command line": ([other(LINE, cmdline=" ")], refused(not_scheduler=1)),
    "syslog": ([other(LINE, "logger", transport="syslog")], refused(unverifiable=1)),
    "native socket": ([other(LINE, transport="journal")], refused(unverifiable=1)),
    "native socket of main": (
        [Entry(LINE, pid=MAIN_PID, cmdline=MAIN, transport="journal")],
        refused(unverifiable=1),
    ),
    "container entry of the unit": (
        [
            other(LINE, "/usr/bin/conmon", transport="journal", fields=CONTAINER),
            other(LINE, "/usr/bin/conmon", fields=CONTAINER),
        ],
        refused(unverifiable=2),
    ),
    "scheduler claims another stage": ([Entry(decode_line(5), 2)], refused(rank_mismatch=1)),
    "scheduler claims another kind of rank": (
        [Entry(LINE.replace(" PP0]", " PP0 DP1]"))],
        refused(rank_mismatch=1),
    ),
    "title beyond pp_size": ([Entry(decode_line(9), 9)], refused(rank_out_of_bounds=1)),
}

TEXTS = {
    **{
        f"glued by {separator!r}": (
            [Entry(QUOTE + separator + LINE), Entry(LINE + separator + LINE)],
            refused(glued=2),
        )
        for separator in ("\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\r", "\r\n", " ")
    },
    "newline in a native message": (
        [
            other(f"first\n{LINE}", transport="journal"),
            Entry(f"{QUOTE}\n{LINE}", transport="journal"),
        ],
        refused(glued=2),
    ),
    "binary message": (
        [
            other(b"\xff\xfe" + LINE.encode(), transport="journal"),
            Entry(LINE.encode().replace(b", #queue", b"\x00, #queue"), transport="journal"),
            Entry(LINE.encode() + b"\xff", transport="journal"),
        ],
        refused(glued=1, malformed=2),
    ),
    "wrapped in JSON": (
        [Entry(f'{{"message": "{LINE}"}}'), main(f'{{"log": "{LINE}\\n"}}')],
        refused(glued=2),
    ),
    "in a request log": (
        [Entry(stamped(f"Receive: obj=GenerateReqInput(text='{LINE}')", 0))],
        refused(glued=1),
    ),
    "cut by another process": (
        [Entry(LINE, fields={"_LINE_BREAK": "pid-change"})],
        refused(not_whole=1),
    ),
    "cut by length, and its rest": (
        [Entry(LINE + "x" * 49_000, fields=CUT), Entry(LINE)],
        refused(not_whole=2),
    ),
    "rest of a long line": ([Entry("x" * 49_152, fields=CUT), Entry(LINE)], refused(not_whole=1)),
    "digits of other scripts": (
        [
            Entry(LINE.replace("running-req: 33", "running-req: \u0663\u0663")),
            Entry(LINE.replace("PP0", "PP\uff10")),
        ],
        refused(malformed=1, glued=1),
    ),
    "field twice": ([Entry(LINE + ", #queue-req: 0")], refused(malformed=1)),
    "field missing": ([Entry(LINE.replace("#running-req", "#jogging-req"))], refused(malformed=1)),
}

VALUES = {
    "absurd figures": (
        [
            Entry(LINE.replace(": 33,", ": 99999999999999999999,")),
            Entry(LINE.replace(": 33,", ": 65537,")),
            Entry(LINE.replace(": 33,", f": {MAX_RUNNING + 1},")),
            Entry(LINE.replace(": 33,", ": -1,")),
            Entry(LINE.replace("usage: 0.05", "usage: 1.06")),
            Entry(LINE.replace("248.10", "99999999999.00")),
            Entry(LINE.replace("#queue-req: 77", "#queue-req: 99999999")),
            Entry(prefill_line(0).replace("#new-token: 64", "#new-token: 99999999999")),
        ],
        refused(malformed=1, value_out_of_bounds=7),
    ),
    "near-twins are nobody's": (
        [
            Entry(stamped("Prefill rank batch, #new-seq: 9, #new-token: 9", 0)),
            Entry(stamped("Decode batching, #running-req: 9, #queue-req: 9", 0)),
            Entry(stamped("decode batch, #running-req: 9, #queue-req: 9", 0)),
        ],
        {},
    ),
}

FACTS = {
    "second arguments": ([main(stamped(FORGED_ARGS))], refused(repeated_args=1)),
    "arguments of others": (
        [
            other(stamped(FORGED_ARGS)),
            other(stamped(FORGED_ARGS), WORKER),
            Entry(stamped(FORGED_ARGS, 0)),
        ],
        refused(not_main=3),
    ),
    "arguments through other transports": (
        [
            other(stamped(FORGED_ARGS), "logger", transport="syslog"),
            Entry(stamped(FORGED_ARGS), pid=MAIN_PID, cmdline=MAIN, transport="journal"),
        ],
        refused(unverifiable=2),
    ),
    "arguments inside a line": ([main(stamped(f"x {FORGED_ARGS}"))], refused(glued=1)),
    "fired up": (
        [main(stamped(FIRED_UP)), other(stamped(FIRED_UP), WORKER), Entry(stamped(FIRED_UP, 0))],
        refused(repeated_args=1, not_main=2),
    ),
    "capacity": (
        [Entry(stamped(capacity(4096), 0)), main(stamped(capacity(4096)))],
        refused(repeated_args=1, not_scheduler=1),
    ),
    "retraction": (
        [
            main(stamped(RETRACTION, 0)),
            Entry(stamped(RETRACTION, 5), 2),
            Entry(stamped(RETRACTION.replace(": 7", ": 99999999"), 0)),
            Entry(f"{QUOTE}\u2028{stamped(RETRACTION, 0)}"),
        ],
        refused(not_scheduler=1, rank_mismatch=1, value_out_of_bounds=1, glued=1),
    ),
    "exception and watchdog": (
        [
            main(stamped("Scheduler hit an exception: Traceback", 0)),
            main(stamped("Scheduler watchdog timeout (self.watchdog_timeout=300)", 0)),
        ],
        refused(not_scheduler=2),
    ),
    "suppression told by others": (
        [
            other(
                f"Suppressed 9 messages from {UNIT}",
                transport="journal",
                fields={
                    "MESSAGE_ID": "a596d6fe7bfa4994828e72309e95d61e",
                    "N_DROPPED": 9,
                    "OBJECT_SYSTEMD_UNIT": UNIT,
                },
            )
        ],
        {},
    ),
}

FORGERIES = PROCESSES | TEXTS | VALUES | FACTS


@pytest.mark.parametrize(("entries", "expected"), FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_line_is_refused_and_changes_no_series(
    served: Witness, entries: list[Entry], expected: dict[Series, float]
) -> None:
    assert served.changes(*entries) == expected


# --- while a server or the exporter starts -----------------------------------------------------


def test_what_others_print_before_the_main_process_counts_for_nothing(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "journal") as journal:
        for forged in (
            other(stamped(FORGED_ARGS), WORKER),
            Entry(stamped(FORGED_ARGS, 0)),
            other(stamped(FIRED_UP)),
            main(stamped(capacity(4096), 0)),
            Entry(stamped(capacity(4096), 3), 2),
        ):
            forged.write(journal)
        start_server(journal)
        with witness(tmp_path, journal) as running:
            shown = running.scrape()
            assert rejected(shown) == {"not_main": 3, "not_scheduler": 1, "rank_mismatch": 1}
            assert shown.label_values("stage_batches_total", "pp_rank") == set(map(str, range(8)))
            too_many = Entry(decode_line(0, running=MAX_RUNNING + 1))
            assert running.changes(too_many) == refused(value_out_of_bounds=1)


def test_an_exporter_that_starts_later_knows_who_may_speak(tmp_path: Path) -> None:
    """From the lines of the server's start, which it looks back at."""
    with JournalWriter(tmp_path / "journal") as journal:
        start_server(journal)
        journal.flush()
        args = ["serve", f"--unit={UNIT}", f"--journal-dir={journal.directory}", "--no-nvml"]
        with RunningExporter(args, tmp_path) as exporter:
            exporter.wait_until((tmp_path / "state" / "positions.json").exists)
            other(LINE, "logger", transport="syslog").write(journal)
            Entry(decode_line(9), 9).write(journal)
            main(stamped(FORGED_ARGS)).write(journal)
            Entry(decode_line(0, running=MAX_RUNNING + 1)).write(journal)
            journal.flush()
            shown = exporter.wait_for(
                lambda shown: shown.total("exporter_journal_lines_total") == 4
            )
    assert rejected(shown) == {
        "unverifiable": 1,
        "rank_out_of_bounds": 1,
        "repeated_args": 1,
        "value_out_of_bounds": 1,
    }
    assert shown.total("stage_batches_total") == 0
    assert shown.label_values("stage_batches_total", "pp_rank") == set(map(str, range(8)))


def rejected(metrics: Metrics) -> dict[str, float]:
    counted = metrics.matching("exporter_rejected_lines_total")
    return {dict(labels)["reason"]: value for (_, labels), value in counted.items()}


# --- through a real journald -------------------------------------------------------------------

IDENTIFIER = "sglang-e2e"
LOGGER = ("logger", "--socket", SOCKETS / "dev-log", "--tag", IDENTIFIER)


@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_journald_itself_tells_a_scheduler_from_those_who_claim_to_be_one(tmp_path: Path) -> None:
    with hand_started_journald():
        args = ["serve", f"--identifier={IDENTIFIER}", "--no-nvml"]
        with (
            RunningExporter(args, tmp_path) as exporter,
            logging_process(IDENTIFIER, "sglang::scheduler_PP3") as log,
        ):
            said = 0

            def is_known(shown: Metrics) -> bool:
                """A process has its parent's command line in its first entries."""
                nonlocal said
                said += 1
                log.write(f"{decode_line(3)}\n".encode())
                return shown.total("stage_batches_total") > 0

            exporter.wait_for(is_known)
            before = exporter.wait_for(lambda shown: lines(shown) == said)
            assert before.total("stage_batches_total") + sum(rejected(before).values()) == said
            assert before.total("exporter_unverified_lines_total") == 0

            subprocess.run([*LOGGER, decode_line(3)], check=True)
            systemd_journal.send(
                decode_line(3), SYSLOG_IDENTIFIER=IDENTIFIER, _CMDLINE="sglang::scheduler_PP3"
            )
            systemd_journal.send(f"x\n{decode_line(3)}", SYSLOG_IDENTIFIER=IDENTIFIER)
            with logging_process(IDENTIFIER, "sidecar_PP3") as sidecar:
                sidecar.write(f"{decode_line(3)}\n".encode())
                after = exporter.wait_for(lambda shown: lines(shown) == said + 4)
    assert after.total("stage_batches_total") == before.total("stage_batches_total")
    changes = {reason: n - rejected(before).get(reason, 0) for reason, n in rejected(after).items()}
    changes = {reason: n for reason, n in changes.items() if n}
    assert changes == {"unverifiable": 2, "glued": 1, "not_scheduler": 1}


def lines(metrics: Metrics) -> float:
    return metrics.total("exporter_journal_lines_total")


# --- the API key -------------------------------------------------------------------------------

KEY = "sk-live-0fe1d2c3b4"
SECRET_ARGS = {
    "dataclass": (
        f"server_args=ServerArgs(model_path='/models/{KEY}', tokenizer_path='x', pp_size=8, "
        f"tp_size=1, host='127.0.0.1', served_model_name=\"it's {KEY}\", api_key='{KEY}', "
        f"admin_api_key='{KEY}', json_model_override_args='{{\"key\": \"{KEY}\"}}')"
    ),
    "dict": (
        f"server_args={{'model_path': '/models/{KEY}', 'pp_size': 8, 'tp_size': 1, "
        f"'served_model_name': \"it's {KEY}\", 'host': '{KEY}', 'api_key': '{KEY}', "
        f"'admin_api_key': '{KEY}', 'extra': {{'headers': ['Bearer {KEY}', \"'{KEY}\"]}}}}"
    ),
    "cut": f"server_args=ServerArgs(model_path='/models/demo', pp_size=8, api_key='{KEY}",
}


@pytest.mark.parametrize("arguments", SECRET_ARGS.values(), ids=SECRET_ARGS.keys())
def test_no_key_comes_out_anywhere(tmp_path: Path, arguments: str) -> None:
    launched = f"{MAIN} --api-key {KEY}"
    with JournalWriter(tmp_path / "journal") as journal:
        for entry in (
            Entry(stamped(arguments), pid=MAIN_PID, cmdline=launched),
            Entry(stamped(capacity(MAX_RUNNING) + f", api_key={KEY}", 0)),
            Entry(stamped(FIRED_UP), pid=MAIN_PID, cmdline=launched),
            Entry(stamped(arguments), pid=MAIN_PID, cmdline=launched),
            Entry(decode_line(0) + f", api key: {KEY}"),
            Entry(decode_line(1), 1, cmdline=f"sglang::scheduler_PP1 --api-key {KEY}"),
            Entry(stamped(f"Scheduler hit an exception: {KEY}", 0)),
            Entry(stamped(f"Scheduler watchdog timeout (self.watchdog_timeout=300) {KEY}", 0)),
            Entry(QUOTE + KEY + LINE),
            main(f"Authorization: Bearer {KEY}"),
        ):
            entry.write(journal)
        with witness(tmp_path, journal) as running:
            assert running.scrape().total("stage_batches_total") == 2
            outputs = running.outputs()
        outputs["state file"] = (tmp_path / "state" / "positions.json").read_text()
        outputs["recording"] = recording_of(journal, tmp_path)
    assert "Decode batch" in outputs["recording"]
    assert [name for name, text in outputs.items() if KEY in text] == []


def recording_of(journal: JournalWriter, folder: Path) -> str:
    """What `record` writes of a journal, with all it says meanwhile."""
    output = folder / "made.jsonl"
    command = [sys.executable, "-m", "exporter", "record", "--duration=0.5", f"--output={output}"]
    sources = [f"--unit={UNIT}", f"--journal-dir={journal.directory}", "--from-start", "--no-nvml"]
    done = subprocess.run([*command, *sources], capture_output=True, text=True, check=True)
    return output.read_text() + done.stdout + done.stderr
