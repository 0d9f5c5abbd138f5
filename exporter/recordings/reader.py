"""Reads a recording: its records in time order, as they are asked for.

In: a file of recording format v1, which may hold anything. Out: records with their place in time.
A line that cannot be used costs itself, is counted, and is named on stderr by number and fault,
never by its text.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exporter.recordings.fields import BadLineError
from exporter.recordings.format import TimedRecord, check_header, decode
from exporter.recordings.lines import NumberedLines
from exporter.recordings.order import TimeOrder
from exporter.records import FatalSourceError, LogLine, Record, Refusal, SourceHealth

logger = logging.getLogger(__name__)

_MOST_NAMED_LINES = 5


class RecordingError(FatalSourceError):
    """The file is no recording this version can read; the message says why."""


class RecordingReader(Iterator[Record]):
    """The records of one recording, oldest first.

    Up to a second of disorder is put right; memory is bounded whatever the file holds.

    Attributes:
        created_at: When the recording was begun; `None` if its header does not say.
        first_at: Instant of its first record; `None` before one was read.
        newest_at: Instant of the newest record handed out: after the last one, the recording's end.
        bad_lines: Lines that could not be used.
        late_lines: Lines more than a second behind the others or alone far ahead; refused.
        unknown_lines: Lines of types this version does not know; ignored.
        bad_values: Values of otherwise usable lines that cannot be true; left out.
        damage: What cut the file short; `None` if it was read to its end.
        health: The same for the metrics about the exporter: log lines read, lines refused.
    """

    def __init__(self, path: Path) -> None:
        """Opens the file and reads its header.

        Raises:
            RecordingError: It cannot be opened, or is no recording of version 1.
        """
        self.health = SourceHealth("recording")
        self.newest_at: float | None = None
        self.bad_lines = 0
        self.late_lines = 0
        self.unknown_lines = 0
        self.bad_values = 0
        self._path = path
        try:
            self._file = NumberedLines(path, self._name_bad_line)
        except OSError as error:
            raise RecordingError(f"cannot read the recording {path}: {error.strerror}") from error
        self._lines = iter(self._file)
        try:
            self.created_at = self._read_header()
        except RecordingError:
            self.close()
            raise
        self._order = TimeOrder(self._refuse, self.created_at)
        self._timed = self._read()
        self.health.up = True

    @property
    def first_at(self) -> float | None:
        """Instant of the first record; `None` before one was read."""
        return self._order.first_at

    @property
    def damage(self) -> str | None:
        """What cut the file short; `None` if it was read to its end."""
        return self._file.damage

    def __next__(self) -> Record:
        return next(self._timed)[1]

    def timed(self) -> Iterator[tuple[float, Record]]:
        """The records not yet handed out, each with its place in time (epoch seconds)."""
        return self._timed

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._file.close()

    def summary(self) -> str | None:
        """What of the file was not used, for people to be told at its end; `None`: all was used."""
        counts = ((self.bad_lines, "bad"), (self.late_lines, "out of time order"))
        parts = [f"{count} lines {fault}" for count, fault in counts if count]
        parts += [f"{self.bad_values} of its facts refused"] if self.bad_values else []
        parts += [self.damage] if self.damage else []
        return f"recording {self._path}: {', '.join(parts)}" if parts else None

    def _read_header(self) -> float | None:
        _, line = next(self._lines, (0, b""))
        if self.damage:
            raise RecordingError(f"cannot read the recording {self._path}: {self.damage}")
        try:
            return check_header(_parse(line))
        except BadLineError as error:
            raise RecordingError(
                f"{self._path} is no recording of version 1: {error}; "
                "`record --output FILE` writes one"
            ) from error

    def _read(self) -> Iterator[tuple[float, Record]]:
        for number, line in self._lines:
            found = self._decode(number, line)
            if found is not None:
                yield from self._handed_out(self._order.add(number, found, len(line)))
        yield from self._handed_out(self._order.finish())
        self.health.last_error = self.summary()
        self.close()

    def _handed_out(
        self, released: Iterator[tuple[float, Record]]
    ) -> Iterator[tuple[float, Record]]:
        for at, record in released:
            self.newest_at = at if self.newest_at is None else max(self.newest_at, at)
            yield at, record

    def _decode(self, number: int, line: bytes) -> TimedRecord | None:
        if not line.strip():
            return None
        try:
            found = decode(_parse(line))
        except BadLineError as error:
            self._name_bad_line(number, str(error))
            return None
        for fault in found.faults if found is not None else ():
            self.bad_values += 1
            self._name(number, f"{fault}; left out", self.bad_values)
        if found is None:
            self.unknown_lines += 1
        elif isinstance(found.record, LogLine):
            self.health.lines += 1
        return found

    def _refuse(self, number: int, record: Record, fault: str) -> None:
        self.late_lines += 1
        if isinstance(record, LogLine):
            self._count_refusal(Refusal.LATE)
        self._name(number, fault, self.late_lines)

    def _name_bad_line(self, number: int, fault: str) -> None:
        self.bad_lines += 1
        self._count_refusal(Refusal.MALFORMED)
        self._name(number, fault, self.bad_lines)

    def _name(self, number: int, fault: str, nth: int) -> None:
        if nth <= _MOST_NAMED_LINES:
            logger.warning("recording %s line %d: %s", self._path, number, fault)
        if nth == _MOST_NAMED_LINES:
            logger.warning("recording %s: further such lines are only counted", self._path)

    def _count_refusal(self, reason: Refusal) -> None:
        refusals = self.health.read_refusals
        refusals[reason] = refusals.get(reason, 0) + 1


def read_records(path: Path) -> RecordingReader:
    """The records of a recording, for feeding them all at once.

    Raises:
        RecordingError: It cannot be opened, or is no recording of version 1.
    """
    return RecordingReader(path)


def _parse(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except RecursionError as error:
        raise BadLineError("nested too deeply") from error
    except ValueError as error:
        raise BadLineError("not JSON") from error
