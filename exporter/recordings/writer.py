"""Writes recording format v1 to a file: what the exporter saw, in time order.

In: records as sources and the model know them, and the text of accepted log lines. Out: a file.
"""

from __future__ import annotations

import gzip
import platform
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO

from exporter.recordings.encoding import encode, encode_header, encode_log
from exporter.recordings.held_lines import HOLD_SECONDS, HeldLines
from exporter.records import LogLine, Record


class RecordingWriter:
    """One recording being made.

    It grows as `PATH.partial`, is flushed once a second so that even a killed recorder leaves a
    readable file, and takes its name at `close`: a file named PATH is always complete, and an
    earlier one stays until then. Something at PATH that is no regular file (a pipe, /dev/stdout) is
    written directly.

    Attributes:
        growing: Where it is until it is complete.
    """

    def __init__(
        self,
        path: Path,
        *,
        note: str | None = None,
        host: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Creates the file and writes the header; compressed when the name ends in `.gz`.

        Raises:
            OSError: The file cannot be created.
        """
        self._clock = clock
        self._path = path
        in_place = path.exists() and not path.is_file()
        self.growing = path if in_place else path.with_name(path.name + ".partial")
        self._raw: IO[bytes] = self.growing.open("wb")
        self._file: IO[bytes] = self._raw
        if path.name.endswith(".gz"):
            self._file = gzip.GzipFile("", "wb", fileobj=self._raw, mtime=0)  # type: ignore[assignment]  # it is a binary file
        self._flush_at = 0.0
        self._closed = False
        created_at = clock()
        self._held = HeldLines(created_at)
        self._file.write(encode_header(created_at, host or platform.node(), note))
        self.advance()

    @property
    def lines(self) -> int:
        """Lines written or held, without the header."""
        return self._held.lines

    @property
    def left_out(self) -> int:
        """Records that came too late to be put in order, or that hold a number that is none."""
        return self._held.left_out

    def write(self, record: Record) -> None:
        """Takes a record; those the format has no place for are passed over.

        Raises:
            OSError: The disk is full or gone.
        """
        for entry in encode(record):
            self._held.hold(entry, self._clock())
        self.advance()

    def write_log(self, line: LogLine, text: str) -> None:
        """Takes an accepted log line with the text to keep of it.

        Raises:
            OSError: The disk is full or gone.
        """
        self._held.hold(encode_log(line, text), self._clock())
        self.advance()

    def advance(self) -> None:
        """Writes what has waited long enough; call it about once a second when nothing comes.

        Raises:
            OSError: The disk is full or gone.
        """
        now = self._clock()
        self._file.writelines(self._held.release(now - HOLD_SECONDS))
        # A clock set back would else stop the flushing for as long.
        if now >= self._flush_at or now < self._flush_at - 1.0:
            self._flush_at = now + 1.0
            self._file.flush()
            self._raw.flush()

    def close(self) -> None:
        """Writes everything held and gives the file its name; may be called twice.

        Raises:
            OSError: The disk is full or gone; what was written stays in `PATH.partial`.
        """
        if not self._closed:
            self._end()
            if self.growing != self._path:
                self.growing.replace(self._path)

    def leave(self) -> Path | None:
        """Ends it without its name, so that an earlier recording stays; may be called after `close`.

        Returns where it is left; `None`: nowhere apart, as it was closed before, held nothing and
        is gone, or is no regular file.

        Raises:
            OSError: The disk is full or gone; what was written stays in `PATH.partial`.
        """
        if self._closed:
            return None
        self._end()
        if self.growing == self._path:
            return None
        if self.lines == 0:
            self.growing.unlink()
            return None
        return self.growing

    def _end(self) -> None:
        self._closed = True
        try:
            self._file.writelines(self._held.release(float("inf")))
        finally:
            try:
                self._file.close()
            finally:
                self._raw.close()

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.leave()
