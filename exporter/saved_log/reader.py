"""Reads a saved log to its end: whatever format it has, its wanted lines in time order.

In: a file that may hold anything, compressed with gzip or not, or standard input. Out: `LogLine`s.
What could not be used is counted by reason and told once; memory is bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from exporter.recordings.lines import NumberedLines
from exporter.records import FatalSourceError, LogLine
from exporter.saved_log.journal_export import BadEntryError, JournalExport, is_entry
from exporter.saved_log.plain_text import BARE, PlainText, TextFormat, format_of, with_starts
from exporter.saved_log.time_order import STAMP_SECONDS, NumberedLine, in_order, spread
from exporter.sources.journal.entries import JournalMatch

STDIN = Path("-")
PROGRESS_LINES = 20_000
"""How often progress is told."""
MOST_SERVERS = 64

_SAMPLE_LINES = 5_000
_SAMPLE_BYTES = 8 << 20
_SAMPLE_STAMPED = 100
"""So many stamped lines settle the format; the first ones are the server's own start."""

Numbered = tuple[int, bytes]

_OTHER_KINDS = (
    (b"LPKSHHRH", "a journal file; export it: journalctl --file FILE -o json --all"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd; unpack it first, or take gzip"),
    (b"\xfd7zXZ", "compressed with xz; unpack it first, or take gzip"),
    (b"BZh", "compressed with bzip2; unpack it first, or take gzip"),
    (b"\xff\xfe", "UTF-16 text; save it as UTF-8"),
    (b'{"type":"header"', "a recording; give it as --recording FILE"),
    (b'{"type": "header"', "a recording; give it as --recording FILE"),
    (b"{\n", "JSON over several lines; take journalctl -o json --all"),
)
"""What a file begins with that people give instead of a log."""

_EXPORT_NAMES = {b"__CURSOR", b"__REALTIME_TIMESTAMP", b"__MONOTONIC_TIMESTAMP", b"_BOOT_ID"}
_EXPORT_LINES = 100
"""What each entry of journalctl's -o export has lines of, and where the first entry ends at last."""


class SavedLogError(FatalSourceError):
    """The file is no log that can be read; the message says why and what to do."""


class SavedLog:
    """One saved log.

    Attributes:
        format: What the file is, for people.
        resolution_seconds: How fine its times are; 0: finer than anything asked of them.
        lines_read: All lines of the file so far.
        tally: Lines that were not used, by reason.
        export: Its entries, if it is an export of the journal.
    """

    def __init__(
        self,
        path: Path,
        *,
        pick: JournalMatch | None = None,
        progress: Callable[[int | None], None] | None = None,
    ) -> None:
        """Opens the file, or standard input as `-`, and settles what it is.

        `pick` names the entries to read of a journal export; `progress` is told now and then how
        many bytes of the file were read, `None` of a pipe.

        Raises:
            SavedLogError: It cannot be read, is empty, or is no log.
        """
        self.lines_read = 0
        self.tally: Counter[str] = Counter()
        self.export: JournalExport | None = None
        self._name = "standard input" if path == STDIN else str(path)
        self._progress = progress
        self._servers: set[str] = set()
        try:
            self._file = NumberedLines(Path("/dev/stdin") if path == STDIN else path, self._refuse)
        except OSError as error:
            raise SavedLogError(f"cannot read {self._name}: {error.strerror}") from error
        self._lines = iter(self._file)
        try:
            self._begin(pick)
        except SavedLogError:
            self._file.close()
            raise

    def _begin(self, pick: JournalMatch | None) -> None:
        self._sample = self._first_lines()
        if not self._sample:
            why = self._file.damage or "it is empty"
            if self.tally:
                why = "it has no lines; is it a text?"
            raise SavedLogError(f"cannot use {self._name} as a log: {why}")
        texts = [raw for _, raw in self._sample]
        for begin, what in _OTHER_KINDS:
            if (texts[0] + b"\n").startswith(begin):
                raise SavedLogError(f"cannot use {self._name} as a log: it is {what}")
        names = {raw.partition(b"=")[0] for raw in texts[:_EXPORT_LINES]}
        if len(_EXPORT_NAMES & names) > 1:
            raise SavedLogError(
                f"cannot use {self._name} as a log: it is journalctl's -o export; take -o json "
                "--all instead"
            )
        entries = sum(is_entry(raw) for raw in texts)
        found = format_of(texts)
        if 2 * entries > len(texts):
            self.export = JournalExport(pick)
            self.format, self.resolution_seconds = "an export of the journal", 0.0
            return
        if pick is not None:
            raise SavedLogError(
                f"cannot look for {pick} in {self._name}: it is {found or BARE}, and only an "
                "export of the journal names units: journalctl -o json --all"
            )
        if found is None and any(b"\0" in raw for raw in texts):
            raise SavedLogError(f"cannot use {self._name} as a log: it is no text")
        self._text = PlainText(found or TextFormat(None, in_container=False, is_fine=False))
        self.format = str(found or BARE)
        self.resolution_seconds = 0.0 if found is not None and found.is_fine else STAMP_SECONDS

    def _first_lines(self) -> list[Numbered]:
        found: list[Numbered] = []
        size = stamped = 0
        for number, raw in self._lines:
            found.append((number, raw))
            size += len(raw)
            stamped += is_entry(raw) or format_of((raw,)) is not None
            if stamped >= _SAMPLE_STAMPED or len(found) >= _SAMPLE_LINES or size > _SAMPLE_BYTES:
                break
        return found

    def __iter__(self) -> Iterator[tuple[float, LogLine]]:
        """The wanted lines with their instants, oldest first; once."""
        lines = in_order(self._wanted(), self._refuse_late)
        if self.resolution_seconds:
            lines = spread(lines)
        try:
            yield from lines if self.export is not None else with_starts(lines)
        finally:
            self._file.close()

    # --- one line ------------------------------------------------------------------------------

    def _wanted(self) -> Iterator[NumberedLine]:
        sample, self._sample = self._sample, []
        for number, raw in chain(sample, self._lines):
            self.lines_read += 1
            if self._progress is not None and self.lines_read % PROGRESS_LINES == 0:
                self._progress(self._file.position_bytes())
            found = self._line(raw)
            if found is not None and self._has_room(found[1].server):
                yield number, *found

    def _line(self, raw: bytes) -> tuple[float | None, LogLine] | None:
        if self.export is None:
            return self._text.line(raw)
        if not raw.strip():
            return None
        try:
            return self.export.line(raw)
        except BadEntryError as error:
            self.tally[str(error)] += 1
            return None

    def _has_room(self, server: str) -> bool:
        if server not in self._servers and len(self._servers) >= MOST_SERVERS:
            self.tally[f"of more than {MOST_SERVERS} servers"] += 1
            return False
        self._servers.add(server)
        return True

    def _refuse(self, _number: int, fault: str) -> None:
        self.lines_read += 1
        self.tally[fault] += 1

    def _refuse_late(self) -> None:
        self.tally["out of time order"] += 1

    # --- at its end ----------------------------------------------------------------------------

    def summary(self) -> str | None:
        """What of the file was not used and why, in one line; `None`: all was."""
        counts = Counter(self.tally)
        if self.export is None:
            counts.update(self._text.tally)
        else:
            for reason, count in self.export.health.read_refusals.items():
                counts[reason.replace("_", " ")] += count
            counts["without their text (export with --all)"] += self.export.without_text
        parts = [f"{count} {reason}" for reason, count in counts.most_common() if count]
        if self._file.damage:
            parts.append(self._file.damage)
        if self.export is not None and not self.export.writers:
            parts.append("none is of the server that was asked for")
        if self.export is not None and (lost := self.export.health.suppressed_messages):
            parts.append(f"{lost} messages were dropped by journald's rate limit")
        if not parts:
            return None
        return f"{self._name}, {self.lines_read} lines, not used: {', '.join(parts)}"
