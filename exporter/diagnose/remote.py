"""The program `diagnose --exporter`: watch through a running exporter, maybe under a load of ours.

In: an exporter's address, and how long or under which load. Out: the outcome, as if it had been
watched here. No source of this host is opened.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from exporter.diagnose.live import DrivenLoad, Driving, check_measured
from exporter.diagnose.live_watch import recording_at
from exporter.diagnose.outcome import Outcome, diagnose_watch, watch_records
from exporter.diagnose.remote_exporter import RemoteExporter
from exporter.diagnose.remote_watch import RemoteWatch, Timed
from exporter.load.result import LoadResult
from exporter.recordings.writer import RecordingWriter
from exporter.records import LogLine, Record
from exporter.sglang_log import storable

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what names an exporter."""
    parser.add_argument(
        "--exporter",
        metavar="URL",
        help="watch through the exporter that runs there, without a load or with that of --url",
    )
    parser.add_argument(
        "--exporter-ca",
        type=Path,
        metavar="FILE",
        help="who issued that exporter's certificate, as PEM (default: whom this machine trusts)",
    )


async def watch_exporter(
    exporter: RemoteExporter, seconds: float, *, save: Path | None = None
) -> Outcome:
    """Watches for a while what an exporter sees.

    Raises:
        ExporterError: There is no exporter that can tell, or it went away before it told anything.
        CannotRecordError: The recording cannot be written.
    """
    end = time.monotonic() + seconds

    def said() -> str:
        return f"watching, {max(0.0, end - time.monotonic()):.0f} s left"

    async with _watched(exporter, save) as seen:
        await seen.watch.until(asyncio.sleep(seconds), said)
        return await seen.outcome()


async def drive_beside(
    exporter: RemoteExporter, load: DrivenLoad, *, save: Path | None = None
) -> Outcome:
    """Drives a load from here while an exporter beside the server watches.

    Raises:
        ExporterError: There is no exporter that can tell.
        NoTargetError: There is no server to load at that address.
        PlanError: The load cannot be driven as asked for.
        NothingMeasuredError: All requests failed.
        CannotRecordError: The recording cannot be written.
    """
    async with _watched(exporter, save) as seen:
        driving = Driving(load, seen.watch.take)
        await seen.watch.until(driving.run(), driving.progress)
        outcome = await seen.outcome(driving.points)
        check_measured(load.url, outcome, was_stopped=seen.watch.was_stopped)
        return outcome


class _Seen:
    """A watch under way, and where its recording goes."""

    def __init__(self, exporter: RemoteExporter, watch: RemoteWatch) -> None:
        self.watch = watch
        self.writer: RecordingWriter | None = None
        self.instant = watch.began_at
        self._exporter = exporter

    async def outcome(self, points: tuple[LoadResult, ...] = ()) -> Outcome:
        """The diagnosis of what was seen, under these loads."""
        outcome = await asyncio.to_thread(self._outcome, points)
        if not outcome.watch.batches:
            told = "".join(f"; {complaint}" for complaint in await self._exporter.complaints())
            log.warning(
                "the exporter at %s saw no batch line: does it read the log of a server that "
                "works, at log level info?%s",
                self._exporter.name,
                told,
            )
        return outcome

    def _outcome(self, points: tuple[LoadResult, ...]) -> Outcome:
        self.watch.warn_of_clocks()
        return diagnose_watch(watch_records(self._saved()), points)

    def _saved(self) -> Iterator[Timed]:
        """What was seen, kept in the recording on its way; a full disk ends that alone."""
        for at, record in self.watch.timed():
            self.instant = at
            if self.writer is not None:
                try:
                    _write(self.writer, record)
                except OSError as error:
                    self.writer = None
                    log.error("the recording ends here: %s; free space", error.strerror)  # noqa: TRY400  # the remedy counts, not the stack
            yield at, record


def _write(writer: RecordingWriter, record: Record) -> None:
    """Writes a record; of a log line, what may be stored: no exporter is trusted with that."""
    if not isinstance(record, LogLine):
        writer.write(record)
    elif (text := storable(record.message)) is not None:
        writer.write_log(record, text)


@asynccontextmanager
async def _watched(exporter: RemoteExporter, save: Path | None) -> AsyncIterator[_Seen]:
    with tempfile.TemporaryDirectory(prefix="sglang-pipeline-diagnose-") as name:
        folder = Path(name)
        async with exporter:
            await exporter.check(folder)
            watch = RemoteWatch(exporter, folder)
            seen = _Seen(exporter, watch)
            async with recording_at(save, lambda: seen.instant) as writer:
                seen.writer = writer
                yield seen
