"""Writes what the sources say to a recording."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from exporter.config import Config
from exporter.ingest import Ingest
from exporter.live_sources import live_ingest
from exporter.recordings.writer import RecordingWriter
from exporter.records import LogLine, Record
from exporter.sglang_log import storable
from exporter.stopping import first_of, ignore_signals, stopped

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0


class CannotRecordError(Exception):
    """The recording cannot be written; the message names the remedy."""


@contextlib.contextmanager
def recording_to(
    output: Path, option: str = "--output", clock: Callable[[], float] = time.time
) -> Iterator[RecordingWriter]:
    """A recording that is made meanwhile; `option` is what names the file on the command line.

    It takes its name at the end, if it holds anything: after an error, or with nothing seen, an
    earlier recording of that name stays.

    Raises:
        CannotRecordError: The file cannot be created, or not be finished.
    """
    writer = _open_recording(output, option, clock)
    if writer.growing != output:
        log.info("the recording is %s until it is whole", writer.growing)
    try:
        yield writer
    except BaseException:
        _leave(writer)
        raise
    if not writer.lines:
        _leave(writer)
        log.warning("nothing was seen: no recording was written to %s", output)
        return
    try:
        writer.close()
    except OSError as error:
        raise CannotRecordError(
            f"cannot finish the recording {output}: {error.strerror}; what was written is in "
            f"{writer.growing}"
        ) from error


def _open_recording(output: Path, option: str, clock: Callable[[], float]) -> RecordingWriter:
    is_device = output.exists() and not output.is_file()
    if not (is_device or output.name.endswith((".jsonl", ".jsonl.gz"))):
        raise CannotRecordError(
            f"cannot write a recording to {output}: its name must be like NAME.jsonl or "
            f"NAME.jsonl.gz; give another with {option}"
        )
    try:
        return RecordingWriter(output, clock=clock)
    except OSError as error:
        raise CannotRecordError(
            f"cannot write the recording {output}: {error.strerror}; name a file in a folder that "
            f"exists and may be written, with {option}"
        ) from error


def _leave(writer: RecordingWriter) -> None:
    """Ends a recording that is not whole, and says where it is."""
    try:
        left = writer.leave()
    except OSError:  # it ended because the disk is full
        left = writer.growing
    if left is not None:
        log.warning("the recording is not whole; what was seen until then is in %s", left)


def keep(writer: RecordingWriter, made: Record, line: LogLine | None) -> None:
    """Writes what reached the model to a recording; of a log line, what may be stored of it.

    Raises:
        OSError: The disk is full or gone.
    """
    if line is None or line.facts_only:
        writer.write(made)
    elif (text := storable(line.message)) is not None:
        writer.write_log(line, text)


async def record(config: Config, seconds: float, output: Path) -> None:
    """Writes what the sources say to a recording for a while, or until a signal.

    Raises:
        CannotRecordError: The recording cannot be written, or there was nothing to write.
        FatalSourceError: A source cannot be read by this process.
    """
    with recording_to(output) as writer:
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tap(made: Record, line: LogLine | None) -> None:
            try:
                keep(writer, made, line)
            except OSError as error:  # the disk is full: no source is to blame
                if not failure.done():
                    failure.set_exception(error)

        async def failed() -> None:
            await failure

        ingest = live_ingest(config, tap=tap)
        stopping = asyncio.create_task(stopped(), name="signals")
        await first_of(
            asyncio.create_task(ingest.run(), name="ingest"),
            stopping,
            asyncio.create_task(failed(), name="disk"),
            asyncio.create_task(_progress(ingest, writer, seconds), name="progress"),
        )
        if not stopping.cancelled():
            ignore_signals()
    if writer.lines == 0:
        raise CannotRecordError("nothing was seen, see the warnings above")
    sys.stderr.write(f"\nwrote {writer.lines} lines to {output}\n")


async def _progress(ingest: Ingest, writer: RecordingWriter, seconds: float) -> None:
    """Says once a second how far a recording is; returns when its time is over."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, PROGRESS_SECONDS))
        writer.advance()
        waiting = "; ".join(f"{name}: {why}" for name, why in ingest.waiting_for().items())
        done = min(1.0, 1.0 - (end - time.monotonic()) / seconds)
        line = f"recording {done:4.0%}, {writer.lines} lines {waiting}"
        sys.stderr.write(f"\r{line:<79}" if sys.stderr.isatty() else line + "\n")
        sys.stderr.flush()
