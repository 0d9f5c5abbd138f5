"""Every line counts once over all lives of the exporter, as the journal itself counts them."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from tests.journal_lives import BusyServer, Lives, Toll, decode_line
from tests.journal_writer import JournalWriter, journal_remote
from tests.journald import hand_started_journald, journalctl_count, logging_process, why_not
from tests.running import Metrics, RunningExporter

pytestmark = pytest.mark.skipif(
    journal_remote() is None, reason="systemd-journal-remote is not installed"
)

LIVES = 4


def run_lives(folder: Path, seed: int, number: int = LIVES) -> Toll:
    """What becomes of the lines of a busy server over some lives; also run at length."""
    chance = random.Random(seed)
    options = ["--from-start"] if seed % 2 else []
    with JournalWriter(folder / "journal") as writer, BusyServer(writer, seed) as server:
        lives = Lives(folder, server, chance, *options)
        lives.begin()
        for _ in range(number):
            lives.live()
            lives.disturb()
        return lives.end()


@pytest.mark.parametrize("seed", range(1, 6))
def test_killed_and_started_again_at_random_moments_no_line_is_lost_or_doubled(
    tmp_path: Path, seed: int
) -> None:
    toll = run_lives(tmp_path, seed)
    assert toll.lines > 100
    assert toll.counted == toll.expected


# --- where counting begins ---------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalWriter]:
    with JournalWriter(tmp_path / "journal") as writer:
        yield writer


def write(journal: JournalWriter, lines: int) -> None:
    for _ in range(lines):
        journal.write(decode_line(0))
    journal.flush()


def serve(journal: JournalWriter, *options: str) -> RunningExporter:
    """An exporter that has begun to read."""
    args = ["serve", "--unit=sglang.service", f"--journal-dir={journal.directory}", "--no-nvml"]
    exporter = RunningExporter([*args, *options], journal.directory.parent)
    exporter.wait_for(lambda shown: shown.value("exporter_source_up", source="journal:sglang"))
    return exporter


def batches(metrics: Metrics) -> float:
    return metrics.total("stage_batches_total", mode="decode", pp_rank="0")


def lines(metrics: Metrics) -> float:
    return metrics.total("exporter_journal_lines_total")


def test_a_first_start_counts_from_now(journal: JournalWriter) -> None:
    write(journal, 5)
    with serve(journal) as exporter:
        write(journal, 2)
        shown = exporter.wait_for(lambda shown: lines(shown) >= 2)
    assert (lines(shown), batches(shown)) == (2, 2)


def test_lines_logged_while_the_exporter_was_down_count(journal: JournalWriter) -> None:
    write(journal, 5)
    with serve(journal) as exporter:
        exporter.kill()
    write(journal, 3)
    journal.rotate()
    write(journal, 4)
    with serve(journal) as exporter:
        shown = exporter.wait_for(lambda shown: lines(shown) >= 7)
    assert (lines(shown), batches(shown)) == (7, 7)


def test_from_start_counts_what_the_journal_holds_once(journal: JournalWriter) -> None:
    write(journal, 5)
    journal.rotate()
    write(journal, 5)
    with serve(journal, "--from-start") as exporter:
        shown = exporter.wait_for(lambda shown: lines(shown) >= 10)
        assert (lines(shown), batches(shown)) == (10, 10)
        exporter.kill()
    write(journal, 1)
    with serve(journal, "--from-start") as exporter:
        shown = exporter.wait_for(lambda shown: lines(shown) >= 1)
    assert (lines(shown), batches(shown)) == (1, 1)


def read_by(exporter: RunningExporter) -> int:
    """Log entries read, as the API tells it."""
    sources = json.loads(exporter.get("/api/v1/pipeline").text)["sources"]
    return sum(source["lines"] for source in sources)


def test_what_was_read_after_the_last_scrape_is_read_again(journal: JournalWriter) -> None:
    with serve(journal) as exporter:
        write(journal, 5)
        shown = exporter.wait_for(lambda shown: lines(shown) >= 5)
        write(journal, 4)
        # The API is no scrape: it shows that the lines were read, and nothing more.
        exporter.wait_until(lambda: read_by(exporter) == 9)
        exporter.kill()
    with serve(journal) as exporter:
        again = exporter.wait_for(lambda shown: lines(shown) >= 4)
    assert (lines(shown), lines(again)) == (5, 4)


def test_a_second_exporter_with_the_same_state_file_ends_at_once(journal: JournalWriter) -> None:
    write(journal, 1)
    with serve(journal), pytest.raises(AssertionError, match="another exporter keeps its reading"):
        serve(journal)


# --- through a real journald -------------------------------------------------------------------

IDENTIFIER = "sglang-lives"


def said_to_the_journal(*matches: str) -> int:
    return journalctl_count(f"--identifier={IDENTIFIER}", *matches)


@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_lines_through_journald_count_over_kills_and_its_own_rotation(tmp_path: Path) -> None:
    args = ["serve", f"--identifier={IDENTIFIER}", "--no-nvml", "--from-start"]
    title = "sglang::scheduler_PP0"
    counted: Counter[str] = Counter()
    with hand_started_journald() as journald, logging_process(IDENTIFIER, title) as log:
        said = say_until_known(log, title)
        for _ in range(4):
            with RunningExporter(args, tmp_path) as exporter:
                log.write(LINE * 20)
                said += 20
                unread = said - counted["lines"]
                shown = exporter.wait_for(lambda shown, n=unread: lines(shown) >= n)  # type: ignore[misc]  # n is bound here
                exporter.kill()
            counted["lines"] += round(lines(shown))
            counted["batches"] += round(batches(shown))
            counted["refused"] += round(shown.total("exporter_rejected_lines_total"))
            log.write(LINE * 7)
            said += 7
            journald.rotate()
        with RunningExporter(args, tmp_path) as exporter:
            shown = exporter.wait_for(lambda shown: lines(shown) >= 7)
        assert lines(shown) == batches(shown) == 7
        assert counted["lines"] + 7 == said == said_to_the_journal()
        assert counted["batches"] + 7 == said_to_the_journal(f"_CMDLINE={title}")
        assert counted["batches"] + counted["refused"] == counted["lines"]


LINE = f"{decode_line(0)}\n".encode()


def say_until_known(log: IO[bytes], title: str) -> int:
    """Logs until journald has seen the title; returns how many lines that took."""
    for said in range(1, 1000):
        log.write(LINE)
        if said_to_the_journal(f"_CMDLINE={title}"):
            return said
    raise AssertionError("journald never saw the title")
