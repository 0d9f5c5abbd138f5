"""What happens to the journal, and to the exporter that reads it."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fast_server import FastServer, shown_counts
from tests.faults import Outcome, beside
from tests.journal_lives import STAGES, UNIT, Counts, decode_line
from tests.journal_writer import JournalWriter
from tests.journald import hand_started_journald, journalctl_count, logging_process
from tests.running import EXPORTER, Metrics, RunningExporter
from tests.scenarios.test_no_line_is_lost import run_lives

LINES = 20
"""Written at a time."""
MEGABYTE = 1_000_000
_READS_ALL = "-dac_override,-dac_read_search"
POWERLESS = (
    ("setpriv", f"--bounding-set={_READS_ALL}", f"--inh-caps={_READS_ALL}")
    if os.geteuid() == 0
    else ()
)
"""How to start a process that may read what permissions let it read, even as root."""


def lines(metrics: Metrics) -> float:
    return metrics.total("exporter_journal_lines_total")


def gaps(metrics: Metrics) -> float:
    return metrics.total("exporter_journal_gaps_total")


class Beside:
    """A journal, the server that writes it, and one life of the exporter after the other.

    Attributes:
        seen: What the lives that ended showed, in sum.
        gaps: The same of the gaps.
    """

    def __init__(self, folder: Path, writer: JournalWriter) -> None:
        self.writer = writer
        self.server = FastServer(writer, seed=1)
        self.seen: Counts = Counter()
        self.gaps = 0.0
        self.lives = 0
        self._folder = folder

    @contextmanager
    def life(self, *options: str, **others: object) -> Iterator[RunningExporter]:
        """A life from the first line on; what it showed last is added up, then it is killed."""
        args = ["serve", f"--unit={UNIT}", f"--journal-dir={self.writer.directory}", "--no-nvml"]
        args += ["--from-start", *options]
        self.lives += 1
        with RunningExporter(args, self._folder, **others) as exporter:  # type: ignore[arg-type]  # its own keywords
            yield exporter
            shown = exporter.metrics()
        self.seen.update(shown_counts(shown))
        self.gaps += gaps(shown)

    def read_all(self, exporter: RunningExporter) -> Metrics:
        """Waits until this life and those before it have read all lines there are."""
        self.writer.flush()
        before = self.seen["lines",]
        return exporter.wait_for(lambda seen: before + lines(seen) >= self.server.lines)

    def outcome(self, expected_gaps: int = 0, **others: tuple[object, object]) -> Outcome:
        return beside(
            self.server.expected, self.seen, gaps=(expected_gaps, round(self.gaps)), **others
        )


@contextmanager
def beside_a_journal(folder: Path) -> Iterator[Beside]:
    with JournalWriter(folder / "journal") as writer:
        run = Beside(folder, writer)
        run.server.start()
        yield run


# --- files -------------------------------------------------------------------------------------


def rotated(folder: Path, times: int) -> Outcome:
    with beside_a_journal(folder) as run:
        with run.life() as exporter:
            for _ in range(times):
                run.server.write(LINES)
                run.writer.rotate()
            run.read_all(exporter)
        return run.outcome()


def vacuumed_of_what_was_read(folder: Path, times: int) -> Outcome:
    with beside_a_journal(folder) as run:
        with run.life() as exporter:
            for _ in range(times):
                run.server.write(LINES)
                run.read_all(exporter)
                run.writer.rotate()
                run.server.write(LINES)
                run.read_all(exporter)
                run.writer.vacuum()
        return run.outcome()


def vacuumed_of_what_was_not(folder: Path, times: int) -> Outcome:
    """The exporter is down meanwhile; what is left afterwards counts, the rest is a gap."""
    with beside_a_journal(folder) as run:
        for _ in range(times):
            with run.life() as exporter:
                run.read_all(exporter)
            kept = run.server.expected.copy()
            run.server.write(LINES)
            run.writer.rotate()
            run.writer.vacuum()
            run.server.expected = kept
            run.server.write(LINES)
        with run.life() as exporter:
            run.read_all(exporter)
        return run.outcome(expected_gaps=times)


def permissions_taken(folder: Path, times: int) -> Outcome:
    """In turn from the directory, from a new file in it, and before the exporter starts."""
    told = 0
    with beside_a_journal(folder) as run:
        for number in range(times):
            if number % 3 < 2:
                taken = (run.writer.directory, run.writer.active_file)[number % 3]
                _taken_from_a_reader(run, taken)
            else:
                _taken_before_the_start(run)
                told += 1
        return run.outcome(refusals_told=(times // 3, told))


def _taken_from_a_reader(run: Beside, taken: Path) -> None:
    with run.life(program=(*POWERLESS, *EXPORTER)) as exporter:
        run.read_all(exporter)
        run.writer.rotate()
        run.server.write(LINES)
        run.writer.flush()
        taken.chmod(0)
        run.server.write(LINES)
        run.writer.flush()
        taken.chmod(0o755)
        run.server.write(LINES)
        run.read_all(exporter)


def _taken_before_the_start(run: Beside) -> None:
    run.server.write(LINES)
    run.writer.flush()
    run.writer.directory.chmod(0)
    with run.life(program=(*POWERLESS, *EXPORTER)) as exporter:
        exporter.wait_until(lambda: "Permission denied" in exporter.said)
        run.writer.directory.chmod(0o755)
        run.read_all(exporter)


def damaged_and_killed(folder: Path, times: int) -> Outcome:
    """So many lives, killed at any moment; rotation, vacuum and damage between them."""
    seed = random.SystemRandom().randrange(2**31)
    try:
        toll = run_lives(folder, seed, number=times)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    return Outcome(
        {"lives": times + 2, "lines": toll.lines, "lost": 0, "doubled or invented": 0},
        {
            "lives": toll.lives,
            "lines": toll.counted["lines",],
            "lost": toll.lost,
            "doubled or invented": toll.doubled,
        },
    )


# --- entries -----------------------------------------------------------------------------------


def burst(folder: Path, times: int) -> Outcome:
    """So many lines as fast as they can be written, with scrapes in between."""
    with beside_a_journal(folder) as run:
        with run.life() as exporter:
            for _ in range(10):
                run.server.write(times // 10)
                exporter.metrics()
            run.read_all(exporter)
        return run.outcome()


def huge_lines(folder: Path, times: int) -> Outcome:
    """1 MB each, in turn a batch line that does not end and a line of no interest."""
    with beside_a_journal(folder) as run:
        with run.life() as exporter:
            for number in range(times):
                run.server.write(LINES)
                if number % 2 == 0:
                    run.server.write_of(0, decode_line(0) + "9" * MEGABYTE, refused="not_whole")
                else:
                    run.server.write_line("x" * MEGABYTE)
            run.server.write(LINES)
            run.read_all(exporter)
        return run.outcome()


def garbage(folder: Path, times: int) -> Outcome:
    """Random bytes, NULs and newlines among them; each fourth begins like a batch line."""
    chance = random.Random(3)
    with beside_a_journal(folder) as run:
        with run.life() as exporter:
            for number in range(times):
                noise = chance.randbytes(chance.randrange(1, 2000))
                if number % 4 == 0:
                    noise = decode_line(1)[:50].encode() + noise
                    run.server.write_of(1, noise, refused="malformed")
                else:
                    run.server.write_of(1, noise)
                if number % LINES == 0:
                    run.server.write(LINES)
            run.read_all(exporter)
        return run.outcome()


# --- a real journald ---------------------------------------------------------------------------

IDENTIFIER = "sglang-faults"


def journald_restarted(folder: Path, times: int) -> Outcome:
    """The truth is what `journalctl` reads: between two journalds nobody takes lines."""
    args = ["serve", f"--identifier={IDENTIFIER}", "--no-nvml", "--from-start"]
    with hand_started_journald() as journald:
        _say(LINES)
        with RunningExporter(args, folder) as exporter:
            exporter.wait_for(lambda seen: lines(seen) >= LINES)
            for _ in range(times):
                journald.stop()
                journald.start()
                _say(LINES)
            exporter.wait_for(lambda seen: lines(seen) >= LINES * (times + 1))
            shown = exporter.metrics()
        kept = journalctl_count(f"--identifier={IDENTIFIER}")
    return Outcome(
        {"lines": LINES * (times + 1), "in the journal": LINES * (times + 1), "gaps": 0},
        {"lines": round(lines(shown)), "in the journal": kept, "gaps": round(gaps(shown))},
    )


def _say(number: int) -> None:
    """Lines through `systemd-cat`; returns once the journal has them."""
    match = f"--identifier={IDENTIFIER}"
    wanted = journalctl_count(match) + number
    with logging_process(IDENTIFIER, "sglang::scheduler_PP0") as log:
        log.write(f"{decode_line(0)}\n".encode() * number)
    while journalctl_count(match) < wanted:
        time.sleep(0.01)


# --- SGLang ------------------------------------------------------------------------------------


def server_restarted(folder: Path, times: int) -> Outcome:
    """Each time with another number of stages and other processes, without a word of farewell.

    A stage that a launch does not have is not shown; its counters go on when it is back.
    """
    chance = random.Random(5)
    right = 0
    with beside_a_journal(folder) as run:
        with run.life() as exporter:
            last = shown_counts(run.read_all(exporter))
            for _ in range(times):
                others = [count for count in range(1, STAGES + 1) if count != run.server.stages]
                stages = chance.choice(others)
                run.server.start(stages)
                run.server.write(2 * LINES)
                seen = run.read_all(exporter)
                last |= shown_counts(seen)
                shown = seen.label_values("stage_batches_total", "pp_rank")
                right += (seen.value("stages"), len(shown)) == (stages, stages)
        return beside(
            run.server.expected,
            last,
            gaps=(0, round(run.gaps)),
            launches_shown_with_their_stages=(times, right),
        )
