"""Reads live sources into model and watch while something goes on, and says how far it is.

In: a configuration, and what goes on meanwhile. Out: the diagnosis of what was seen until its end,
or until a signal. Everything that reached the model is kept in a recording where there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter.config import Config
from exporter.diagnose.outcome import HARVEST_SECONDS, Outcome, diagnose_watch, harvest
from exporter.diagnose.progress_line import ProgressLine, state_words
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.gpu_driver import GpuDriver
from exporter.live_sources import PROC, live_ingest
from exporter.load.result import LoadResult
from exporter.recorder import CannotRecordError, keep, recording_to
from exporter.recordings.writer import RecordingWriter
from exporter.records import LogLine, Record
from exporter.snapshot import Snapshot
from exporter.stopping import STOPPING, ignore_signals, stopped

log = logging.getLogger(__name__)

LOG_SOURCES = ("journal:", "files:", "stdin:")
TERMINAL_SECONDS = 1.0
FILE_SECONDS = 10.0
"""How often progress is said, on a terminal and elsewhere."""


class LiveWatch:
    """The sources of a configuration while something goes on.

    Attributes:
        watch: What reached the model so far, or since `start_anew`.
        ingest: Takes the records of a load too, by `handle`.
        was_stopped: A signal ended it.
    """

    def __init__(
        self,
        config: Config,
        writer: RecordingWriter | None = None,
        *,
        driver: GpuDriver | None = None,
        proc_root: Path = PROC,
    ) -> None:
        """Opens nothing yet; `driver` and `proc_root` stand in for NVML and /proc."""
        self.watch = Watch()
        self.was_stopped = False
        self._troubles: dict[str, str] | None = None
        self._earlier: list[Watch] = []
        self._writer = writer
        self.ingest = live_ingest(config, driver=driver, proc_root=proc_root, tap=self._tap)

    @property
    def troubles(self) -> dict[str, str]:
        """What keeps a log from being read, by source, now or when the watch ended."""
        return self._log_troubles() if self._troubles is None else self._troubles

    @property
    def heard(self) -> bool:
        """Whether a batch line was seen."""
        return any(watch.batches for watch in (*self._earlier, self.watch))

    async def until(
        self, work: Coroutine[Any, Any, None], said: Callable[[Snapshot], str], *, alone: bool
    ) -> None:
        """Reads the sources until `work` ends, or is canceled because of a signal.

        What work does at its cancellation is waited for, whatever signals come meanwhile. `said` is
        the progress to show; `alone`: work goes on when all sources have ended.

        Raises:
            FatalSourceError: A source cannot be read by this process.
        """
        working = asyncio.create_task(work, name="work")
        reading = asyncio.create_task(self.ingest.run(), name="ingest")
        signals = _ending_signals()
        stopping = asyncio.create_task(stopped(signals), name="signals")
        telling = asyncio.create_task(self._tell(said), name="progress")
        tasks = [working, reading, stopping, telling]
        try:
            waited = {*tasks}
            while not (working.done() or stopping.done()):
                done, waited = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if reading.done() and not alone:
                    break
            self.was_stopped = stopping.done()
            self._troubles = self._log_troubles()  # before the sources are closed
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self.was_stopped:
                ignore_signals(signals)

    def start_anew(self) -> Watch:
        """What is read from now on goes to a new watch; returns the one so far."""
        before, self.watch = self.watch, self.watch.successor()
        self._earlier.append(before)  # what settles late is still its own
        return before

    def outcome(
        self,
        points: tuple[LoadResult, ...] = (),
        *,
        watch: Watch | None = None,
        pipeline: PipelineKey | None = None,
    ) -> Outcome:
        """The diagnosis of what was seen, under these loads; nothing more may come.

        Of the newest watch if none is named, and of the pipeline that printed most in it.
        """
        self.ingest.finish()
        self._harvest()
        outcome = diagnose_watch(self.watch if watch is None else watch, points, pipeline)
        troubles = tuple(f"{name}: {why}" for name, why in self.troubles.items())
        return replace(outcome, troubles=troubles)

    def _harvest(self) -> None:
        for watch in (*self._earlier, self.watch):
            harvest(self.ingest, watch)

    def _log_troubles(self) -> dict[str, str]:
        return {
            health.name: health.last_error or "not opened yet"
            for health in self.ingest.healths()
            if health.name.startswith(LOG_SOURCES) and (health.last_error or not health.up)
        }

    def _tap(self, made: Record, line: LogLine | None) -> None:
        self.watch.fold(made)
        self._save(lambda writer: keep(writer, made, line))

    def _save(self, act: Callable[[RecordingWriter], None]) -> None:
        """Does something to the recording; a full disk ends the recording, not the diagnosis."""
        if self._writer is None:
            return
        try:
            act(self._writer)
        except OSError as error:
            self._writer = None
            log.error("the recording ends here: %s; free space and try again", error.strerror)  # noqa: TRY400  # the remedy counts, not the stack

    async def _tell(self, said: Callable[[Snapshot], str]) -> None:
        told_at = harvested_at = time.monotonic()
        with ProgressLine() as progress:
            while True:
                await asyncio.sleep(TERMINAL_SECONDS)
                now = time.monotonic()
                self._save(RecordingWriter.advance)
                if now - harvested_at >= HARVEST_SECONDS:
                    self._harvest()
                    harvested_at = now
                if progress.on_terminal or now - told_at >= FILE_SECONDS:
                    progress.say(said(self.ingest.snapshot()))
                    told_at = now


def _ending_signals() -> tuple[signal.Signals, ...]:
    """Those that end it cleanly; a hang-up that is ignored already (nohup) stays so."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return STOPPING if ignored else (*STOPPING, signal.SIGHUP)


@contextlib.asynccontextmanager
async def recording_at(
    path: Path | None, clock: Callable[[], float] = time.time
) -> AsyncIterator[RecordingWriter | None]:
    """A recording that is made meanwhile; `None`: none is. `clock` is that of its records.

    It takes its name only where the diagnosis came to something.

    Raises:
        CannotRecordError: The file cannot be created.
    """
    if path is None:
        yield None
        return
    is_over = False
    try:
        with recording_to(path, "--save", clock) as writer:
            yield writer
            is_over = True
    except CannotRecordError as error:
        if not is_over:
            raise
        log.error("%s", error)  # noqa: TRY400  # the remedy counts, not the stack


def state_text(snapshot: Snapshot) -> str:
    """Occupancy, running and queued requests of the first pipeline, as far as they are known."""
    server = snapshot.servers[0] if snapshot.servers else None
    pipeline = server.pipelines[0] if server is not None and server.pipelines else None
    occupancy = running = None
    if pipeline is not None:
        occupancy, running = pipeline.occupancy_ratio, pipeline.slots.running_requests
    stages = server.stages if server is not None else ()
    queues = [stage.queued_reqs for stage in stages if stage.queued_reqs is not None]
    return state_words(occupancy, running, queues)
