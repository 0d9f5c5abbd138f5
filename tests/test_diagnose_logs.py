"""`diagnose --log`: logs of real servers and of simulated ones, as people save them."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter.cli import EXIT_ERROR, main
from exporter.diagnose.command import EXIT_CANNOT_TELL
from exporter.diagnose.from_log import LogQuestion, diagnose_log
from exporter.diagnosis.findings import CONFIDENT, Missing, Verdict
from exporter.diagnosis.verdict import Diagnosis
from exporter.simulator.server_log import LogEntry
from exporter.simulator.simulation import Simulation
from tests.journal_export import DATA, real_journal
from tests.journal_writer import journal_remote
from tests.random_servers import CLASSES, accepted, server
from tests.simulated_recording import concurrency_of

BAD_SPLITS = {Verdict.THUNDERING_HERD, Verdict.UNEVEN_SPLIT}
SHORT_JOURNAL = "sglang_journal/pp4_burst_i7_iters.export.gz"
STARTED_AT = 1_796_032_800.0


def text_of(name: str) -> str:
    """What the terminal of a real server would have shown."""
    messages = (entry.get("MESSAGE", b"") for entry in real_journal(name))
    return "".join(message.decode(errors="replace") + "\n" for message in messages)


def verdict_on(path: Path, concurrency: int | None = None) -> Diagnosis:
    return diagnose_log(LogQuestion(path, concurrency)).diagnosis


def written(folder: Path, text: str) -> Path:
    path = folder / "sglang.log"
    path.write_text(text)
    return path


def without_milliseconds(text: str) -> str:
    return re.sub(r"(?m)^(\[[0-9-]{10} [0-9:]{8})\.[0-9]{3}", r"\1", text)


# --- real servers ------------------------------------------------------------------------------


@pytest.mark.parametrize("coarse", [False, True], ids=["milliseconds", "whole seconds"])
def test_a_burst_in_few_slots_is_told_from_the_text_alone(coarse: bool, tmp_path: Path) -> None:
    text = text_of("pp4_burst_i7_iters")
    path = written(tmp_path, without_milliseconds(text) if coarse else text)
    for concurrency in (None, 32):
        diagnosis = verdict_on(path, concurrency)
        assert diagnosis.verdict in BAD_SPLITS
        assert diagnosis.figures.slots.effective == pytest.approx(1.6, abs=0.2)
        assert diagnosis.confidence < CONFIDENT, "only a part of the load shows the split"
        assert (Missing.TIMES in diagnosis.missing) is coarse


def test_an_even_split_is_told_where_it_is_said_how_many_requests_there_were(
    tmp_path: Path,
) -> None:
    path = written(tmp_path, text_of("pp4_mmb8_i41"))
    alone = verdict_on(path)
    assert alone.verdict is Verdict.CANNOT_TELL
    assert Missing.CONCURRENCY in alone.missing
    known = verdict_on(path, 32)
    assert known.verdict is Verdict.HEALTHY
    assert known.confidence < CONFIDENT, "what the stages do is not seen"


def test_the_default_interval_is_named_as_what_hides_the_slots(tmp_path: Path) -> None:
    diagnosis = verdict_on(written(tmp_path, text_of("pp8_default")))
    assert diagnosis.verdict is Verdict.CANNOT_TELL
    assert diagnosis.figures.slots.suggested_interval == 41


def test_whole_seconds_give_no_figure_that_is_finer(tmp_path: Path) -> None:
    log = verdict_on(written(tmp_path, text_of("pp4_mmb8_i41"))).figures.log
    assert log.prefill_ratio is None
    assert log.silent_seconds is not None
    assert log.silent_seconds.is_integer()


@pytest.mark.skipif(journal_remote() is None, reason="systemd-journal-remote is not installed")
@pytest.mark.parametrize("form", ["json", "short", "short-precise", "short-iso"])
def test_what_journalctl_prints_says_the_same_as_the_journal(form: str, tmp_path: Path) -> None:
    export = tmp_path / "export"
    export.write_bytes(gzip.decompress((DATA / SHORT_JOURNAL).read_bytes()))
    program = journal_remote()
    assert program is not None
    subprocess.run([program, "-o", tmp_path / "x.journal", export], check=True, capture_output=True)
    printed = subprocess.check_output(["journalctl", "-D", tmp_path, "-o", form, "--all", "-q"])
    path = tmp_path / "saved.log"
    path.write_bytes(printed)
    diagnosis = verdict_on(path, 32)
    assert diagnosis.verdict in BAD_SPLITS
    assert diagnosis.figures.lines_seen == 500


# --- simulated servers -------------------------------------------------------------------------


def as_text(entry: LogEntry) -> str:
    return entry.message.replace("\n", "\\n")


def as_json(entry: LogEntry) -> str:
    return json.dumps(
        {
            "__REALTIME_TIMESTAMP": str(round(entry.at * 1e6)),
            "_PID": str(entry.process.pid),
            "_CMDLINE": entry.process.title,
            "_TRANSPORT": "stdout",
            "_SYSTEMD_UNIT": "sglang.service",
            "MESSAGE": entry.message,
        }
    )


def simulated(verdict: str, seed: int, form: Callable[[LogEntry], str], seconds: float) -> str:
    """The log of a server drawn at random, noise and forgeries of its users included."""
    simulation = Simulation(
        server(verdict, seed), started_at=STARTED_AT, seed=seed, forged=True, quiet_seconds=3.0
    )
    lines = []
    while simulation.now < STARTED_AT + seconds:
        lines += [form(entry) for entry in simulation.advance(simulation.now + 1.0)]
    return "\n".join(lines)


@pytest.mark.parametrize("verdict", sorted(CLASSES))
def test_no_log_gives_a_confident_wrong_verdict(verdict: str, tmp_path: Path) -> None:
    for form in (as_text, as_json):
        path = written(tmp_path, simulated(verdict, 0, form, 45.0))
        for concurrency in (None, concurrency_of(server(verdict, 0))):
            found = verdict_on(path, concurrency)
            right = found.verdict in accepted(verdict) or found.verdict is Verdict.CANNOT_TELL
            assert right or found.confidence < CONFIDENT, (form, concurrency, found.verdict)


@pytest.mark.parametrize("verdict", ["thundering_herd", "uneven_split", "over_split", "kv_limited"])
def test_what_a_log_can_tell_is_told(verdict: str, tmp_path: Path) -> None:
    for form in (as_text, as_json):
        path = written(tmp_path, simulated(verdict, 1, form, 45.0))
        found = verdict_on(path, concurrency_of(server(verdict, 1)))
        assert found.verdict == verdict
        # Nothing tells who wrote a line of a text.
        assert (found.confidence >= CONFIDENT) is (form is as_json)
        assert (Missing.WRITERS in found.missing) is (form is as_text)


def test_lines_that_a_user_imitates_in_a_text_log_give_no_confident_verdict(
    tmp_path: Path,
) -> None:
    lines = []
    for line in text_of("pp4_mmb8_i41").split("\n"):
        lines.append(line)
        if "Decode batch" in line and len(lines) % 2:
            lines += [re.sub(r"#running-req: \d+", "#running-req: 32", line)] * 40
    found = verdict_on(written(tmp_path, "\n".join(lines)), 32)
    assert found.confidence < CONFIDENT
    assert Missing.WRITERS in found.missing
    (repeated,) = (each for each in found.evidence if each.quantity == "repeated_lines")
    assert isinstance(repeated.value, int)
    assert repeated.value > 1000


def test_lines_of_a_real_server_do_not_repeat(tmp_path: Path) -> None:
    found = verdict_on(written(tmp_path, text_of("pp4_burst_i7_iters")), 32)
    assert not any(each.quantity == "repeated_lines" for each in found.evidence)


# --- several starts ----------------------------------------------------------------------------


def test_of_several_starts_the_last_one_with_a_load_is_judged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    early = text_of("pp8_default")
    late = text_of("pp4_burst_i7_iters")
    crashed = "[2026-11-30 09:00:00] server_args={'pp_size': 2, 'tp_size': 1}\n"
    diagnosis = verdict_on(written(tmp_path, early + late + crashed), 32)
    assert diagnosis.figures.pp_size == 4
    assert diagnosis.verdict in BAD_SPLITS
    assert "3 starts" in caplog.text


# --- the command -------------------------------------------------------------------------------


def test_a_text_without_a_line_of_a_server_is_told_what_a_log_must_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, "some notes\nof somebody\n")
    assert main(["diagnose", "--log", str(path)]) == EXIT_CANNOT_TELL
    said = " ".join(capsys.readouterr().out.split())
    assert "No batch line of an SGLang server was seen" in said
    assert "Decode batch, #running-req" in said


def test_lines_that_were_not_used_are_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    lines = text_of("pp4_mmb8_i41").split("\n")
    batch = next(line for line in lines if "Decode batch" in line)
    path = written(tmp_path, "\n".join([*lines, f"user text {batch}", f"more {batch}"]))
    main(["diagnose", "--json", "--log", str(path)])
    assert json.loads(capsys.readouterr().out)["verdict"] == Verdict.CANNOT_TELL
    (told,) = (record.message for record in caplog.records if "not used" in record.message)
    assert "2 lines that continue another" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--save=x.jsonl"], "--save is about a live server"),
        (["--file=x.log"], "--file is about a live server"),
        (["--concurrency=0"], "--concurrency"),
        (["--rate=3"], "--rate is about a load"),
        (["--unit=sglang"], "only an export of the journal names units"),
    ],
)
def test_options_that_say_nothing_of_a_saved_log_are_named(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, text_of("pp4_mmb8_i41"))
    assert main(["diagnose", "--json", f"--log={path}", *arguments]) == EXIT_ERROR
    assert said in json.loads(capsys.readouterr().out)["error"]


def test_a_log_without_the_servers_arguments_says_that_they_are_missing(tmp_path: Path) -> None:
    lines = [line for line in text_of("pp4_mmb8_i41").split("\n") if "server_args=" not in line]
    diagnosis = verdict_on(written(tmp_path, "\n".join(lines)), 32)
    assert diagnosis.verdict is Verdict.CANNOT_TELL
    assert Missing.ARGUMENTS in diagnosis.missing
    assert diagnosis.figures.pp_size == 4, "the ranks still show"
