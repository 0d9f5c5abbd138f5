"""A recording played as a source, at the speed at which it was made.

In: recording format v1. Out: its records, each when its time has come, and the recording's own time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from exporter.recordings.reader import RecordingReader
from exporter.records import Record, SourceHealth
from exporter.sources import Emit, Position

logger = logging.getLogger(__name__)

_BATCH_RECORDS = 256


class RecordingSource:
    """A recording as a source; its clock is the recording's own time.

    Attributes:
        reader: The file being read, with its counters; `None` before `open`.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Names the recording; `clock` counts seconds from anywhere, `sleep` waits by it."""
        self.health = SourceHealth("recording")
        self.reader: RecordingReader | None = None
        self._path = path
        self._clock = clock
        self._sleep = sleep
        self._began_at: float | None = None
        self._over = False

    async def open(self, position: Position | None) -> None:
        """Reads the header; a recording is always played from its beginning.

        Raises:
            RecordingError: It cannot be opened, or is no recording of version 1.
        """
        self.reader = await asyncio.to_thread(RecordingReader, self._path)
        self.health = self.reader.health
        self._began_at, self._over = None, False

    async def run(self, emit: Emit) -> None:
        """Emits each record when its time has come, then returns.

        Raises:
            RuntimeError: It was not opened.
        """
        if self.reader is None:
            raise RuntimeError("open the recording before playing it")
        while batch := await asyncio.to_thread(_next_batch, self.reader):
            if self._began_at is None:
                self._began_at = self._clock()
            for at, record in batch:
                wait_seconds = at - self.now()
                if wait_seconds > 0.0:
                    await self._sleep(wait_seconds)
                emit(record)
        self._over = True
        if summary := self.reader.summary():
            logger.warning("%s", summary)

    def now(self) -> float:
        """The recording's time now, in epoch seconds: its end once it is over; 0 before it began."""
        if self.reader is None or self._began_at is None:
            return 0.0
        if self._over:
            return self.reader.newest_at or 0.0
        return (self.reader.first_at or 0.0) + self._clock() - self._began_at

    def position(self) -> Position | None:
        """Always `None`: a recording is not resumed."""
        return None

    async def close(self) -> None:
        """Closes the file; may be called twice."""
        self.health.up = False
        if self.reader is not None:
            self.reader.close()


def _next_batch(reader: RecordingReader) -> list[tuple[float, Record]]:
    return list(itertools.islice(reader.timed(), _BATCH_RECORDS))
