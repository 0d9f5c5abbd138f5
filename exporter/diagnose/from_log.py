"""The program `diagnose --log`: a saved log → the outcome for one start of one server.

In: a file. Out: the outcome, made from its lines alone. A log may hold several starts of a server,
each with arguments of its own: the last one that has a steady load is judged, the others are not
mixed into it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.admission import Admission
from exporter.diagnose.outcome import Outcome
from exporter.diagnosis.findings import Missing
from exporter.diagnosis.measure import figures_in, measure
from exporter.diagnosis.repeated_lines import repeated_lines
from exporter.diagnosis.slots_in_window import telling_window
from exporter.diagnosis.steady_window import Window, choose_window
from exporter.diagnosis.verdict import Diagnosis, diagnose
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.records import LogLine, Record, Refusal, RefusedLine
from exporter.saved_log.plain_text import DEFAULT_SERVER
from exporter.saved_log.reader import STDIN, SavedLog
from exporter.sources.journal.entries import JournalMatch

log = logging.getLogger(__name__)

MOST_STARTS = 64
"""The newest ones are kept."""
LARGE_BYTES = 100 * 10**6
"""From here on reading a log takes so long that progress is told."""
_REASONS = {str(Refusal.GLUED): "lines that continue another"}
"""Reasons whose own name tells nothing to whoever saved a log."""
_MOST_OF_IT = 0.5
_SURE_OF_A_PART = 0.65
"""Nobody is confident of a load by the smaller part of it that tells."""
_SURE_OF_A_TEXT = 0.65
"""Nor by lines that any user's text can imitate."""
_TELL_SECONDS = 1.0
_TELL_FILE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LogQuestion:
    """Which log is asked about, and what is known beside it.

    Attributes:
        path: The file; `-` is standard input.
        concurrency: Requests that the clients kept in flight, if that is known.
        pick: The entries to read of an export of the journal; `None`: of the server that printed
            most.
    """

    path: Path
    concurrency: int | None = None
    pick: JournalMatch | None = None


def diagnose_log(question: LogQuestion) -> Outcome:
    """The outcome for the pipeline that printed most in a saved log.

    Raises:
        SavedLogError: It cannot be read, is empty, or is no log.
    """
    progress = _Progress(question.path)
    saved = SavedLog(question.path, pick=question.pick, progress=progress)
    starts, refused = _read(saved)
    progress.end()
    _tell_unused(saved, refused)
    key = starts.loudest() or (DEFAULT_SERVER, 0)
    watch, number, count = starts.judged(key)
    if count > 1:
        log.warning(
            "the log holds %d starts of server=%s; this is about number %d", count, key[0], number
        )
    return _outcome(watch, key, question.concurrency, saved)


def _read(saved: SavedLog) -> tuple[Starts, Counter[str]]:
    admission, starts = Admission(), Starts(saved.resolution_seconds)
    refused: Counter[str] = Counter()
    for _, line in saved:
        record = admission.admit(line)
        if isinstance(record, RefusedLine):
            refused[record.reason] += 1
        elif record is not None:
            starts.fold(record, line)
    return starts, refused


def _outcome(watch: Watch, key: PipelineKey, concurrency: int | None, saved: SavedLog) -> Outcome:
    window, whole = choose_window(watch, key), True
    if window is None:
        figures = measure(watch, key)
    else:
        window = _said_so(replace(window, concurrency=concurrency), saved)
        figures = figures_in(watch, key, window)
        telling = telling_window(watch, key, window) if figures.slots.effective is None else None
        if telling is not None:
            figures = figures_in(watch, key, telling)
            whole = telling.seconds >= _MOST_OF_IT * window.seconds
    diagnosis = diagnose(figures)
    if not whole:
        diagnosis = replace(diagnosis, confidence=min(diagnosis.confidence, _SURE_OF_A_PART))
    missing = dict.fromkeys(diagnosis.missing)
    if not all(batch.verified for batch in watch.batches.get(key, ())):
        diagnosis = _as_text_tells(diagnosis, watch, key)
        missing[Missing.WRITERS] = None
    if Missing.SLOTS in missing and concurrency is None:
        missing[Missing.CONCURRENCY] = None
    if watch.batches and not {"pp_size", "decode_log_interval"} <= figures.facts.keys():
        missing[Missing.ARGUMENTS] = None
    if watch.batches and saved.resolution_seconds:
        missing[Missing.TIMES] = None
    return Outcome(replace(diagnosis, missing=tuple(missing)), watch, key)


def _as_text_tells(diagnosis: Diagnosis, watch: Watch, key: PipelineKey) -> Diagnosis:
    """What lines support of which nobody knows who wrote them."""
    repeated = repeated_lines(watch.batches[key], watch.facts.get(key[0], {}))
    return replace(
        diagnosis,
        confidence=min(diagnosis.confidence, _SURE_OF_A_TEXT),
        evidence=(*diagnosis.evidence, *([repeated] if repeated is not None else [])),
    )


def _said_so(window: Window, saved: SavedLog) -> Window:
    stamps = " by stamps of whole seconds" if saved.resolution_seconds else ""
    return replace(window, chosen_by=window.chosen_by + stamps)


# --- starts of servers -------------------------------------------------------------------------


class Starts:
    """What a log holds of each server, by start: facts of one say nothing of another."""

    def __init__(self, resolution_seconds: float) -> None:
        """Names how fine the log's times are."""
        self._resolution_seconds = resolution_seconds
        self._watches: dict[str, dict[str | None, Watch]] = {}

    def fold(self, record: Record, line: LogLine) -> None:
        """Takes an accepted record of a line."""
        starts = self._watches.setdefault(line.server, {})
        watch = starts.get(line.launch)
        if watch is None:
            if len(starts) >= MOST_STARTS:
                del starts[next(iter(starts))]
            watch = starts[line.launch] = self._new_watch()
        watch.fold(record)

    def _new_watch(self) -> Watch:
        watch = Watch()
        watch.time_resolution_seconds = self._resolution_seconds
        return watch

    def loudest(self) -> PipelineKey | None:
        """The pipeline with most lines over all starts; `None` if no line was taken."""
        lines: Counter[PipelineKey] = Counter()
        for server, starts in self._watches.items():
            lines[server, 0] += 0
            for watch in starts.values():
                lines.update({key: len(kept) for key, kept in watch.batches.items()})
        if not lines:
            return None
        heard = sorted((key for key in lines if lines[key]), key=lambda key: (-lines[key], key))
        if len(heard) > 1:
            (server, dp_rank), others = heard[0], len(heard) - 1
            log.warning(
                "%d pipelines are in the log; this is about server=%s dp_rank=%d%s",
                others + 1,
                server,
                dp_rank,
                "" if len({each[0] for each in heard}) == 1 else " (--unit names another)",
            )
        return heard[0] if heard else min(lines)

    def judged(self, key: PipelineKey) -> tuple[Watch, int, int]:
        """The last start with a steady load, or else with lines; its number, and of how many."""
        starts = list(self._watches.get(key[0], {}).values()) or [self._new_watch()]
        numbers = range(len(starts), 0, -1)
        for number in numbers:
            if choose_window(starts[number - 1], key) is not None:
                return starts[number - 1], number, len(starts)
        number = next((n for n in numbers if starts[n - 1].batches.get(key)), len(starts))
        return starts[number - 1], number, len(starts)


# --- what is said meanwhile --------------------------------------------------------------------


def _tell_unused(saved: SavedLog, refused: Counter[str]) -> None:
    for reason, count in refused.items():
        saved.tally[_REASONS.get(reason, reason.replace("_", " "))] += count
    if summary := saved.summary():
        log.warning("%s", summary)


class _Progress:
    """Says how far a large file was read."""

    def __init__(self, path: Path) -> None:
        self._size = path.stat().st_size if path != STDIN and path.is_file() else None
        self._told_at = time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def __call__(self, read_bytes: int | None) -> None:
        if self._size is not None and self._size < LARGE_BYTES:
            return
        now = time.monotonic()
        if now - self._told_at < (_TELL_SECONDS if self._on_terminal else _TELL_FILE_SECONDS):
            return
        self._told_at = now
        far = "" if read_bytes is None or not self._size else f", {read_bytes / self._size:.0%}"
        line = f"reading the log{far}"
        sys.stderr.write(f"\r{line:<40}" if self._on_terminal else line + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leaves no line behind on a terminal."""
        if self._on_terminal:
            sys.stderr.write(f"\r{'':40}\r")
            sys.stderr.flush()
