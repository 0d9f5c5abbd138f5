"""Watches live sources in this process for a while, drives a load meanwhile if asked to, diagnoses.

In: a configuration, and how long or under which load. Out: one diagnosis and what the load measured.
Records take the path of a recording: sources and load → model → watch; `save` keeps them. Says on
stderr how far it is. A signal ends it early, with the diagnosis of what was seen so far.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporter.config import Config
from exporter.daemon import PROC, keep, live_ingest, open_recording, stopped
from exporter.diagnose import HARVEST_SECONDS, diagnose_watch, harvest
from exporter.diagnosis.verdict import Diagnosis
from exporter.diagnosis.watch import Watch
from exporter.gpu_driver import GpuDriver
from exporter.load.detection import check_fits, find_target
from exporter.load.failures import LoadError
from exporter.load.plan import LoadPlan
from exporter.load.report import progress_text, troubles
from exporter.load.result import EndReason, LoadProgress, LoadResult
from exporter.load.sweep import Sweep
from exporter.recordings.writer import RecordingWriter
from exporter.records import LogLine, Record
from exporter.snapshot import Snapshot

log = logging.getLogger(__name__)

LOG_SOURCES = ("journal:", "files:", "stdin:")
SETTLE_SECONDS = 2.0
"""Log and rings lag by up to this: they are read on for so long after a load."""
TERMINAL_SECONDS = 1.0
FILE_SECONDS = 10.0
"""How often progress is said, on a terminal and elsewhere."""


class NothingSeenError(Exception):
    """No batch line came and a log is not read; the message says why and what to do."""


class NothingMeasuredError(LoadError):
    """All requests of a load failed; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class DrivenLoad:
    """A load to drive against one server.

    Attributes:
        concurrencies: The points, in the order they are driven; one or more.
        token: Sent as a bearer token.
    """

    url: str
    plan: LoadPlan
    concurrencies: tuple[int, ...]
    token: str | None = field(default=None, repr=False)


class LiveWatch:
    """The sources of a configuration while something goes on.

    Attributes:
        watch: What reached the model so far.
        ingest: Takes the records of a load too, by `handle`.
        was_stopped: A signal ended it.
        troubles: What keeps a log from being read, by source, when the watch ended.
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
        self.troubles: dict[str, str] = {}
        self._writer = writer
        self.ingest = live_ingest(config, driver=driver, proc_root=proc_root, tap=self._tap)

    async def until(
        self, work: Coroutine[Any, Any, None], said: Callable[[Snapshot], str], *, alone: bool
    ) -> None:
        """Reads the sources until `work` ends or is stopped by a signal.

        `said` is the progress to show; `alone`: work goes on when all sources have ended.

        Raises:
            FatalSourceError: A source cannot be read by this process.
        """
        working = asyncio.create_task(work, name="work")
        reading = asyncio.create_task(self.ingest.run(), name="ingest")
        stopping = asyncio.create_task(stopped(), name="signals")
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
            self.troubles = self._log_troubles()  # before the sources are closed
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def diagnosis(self) -> Diagnosis:
        """The diagnosis of what was seen; nothing more may come."""
        self.ingest.finish()
        harvest(self.ingest, self.watch)
        return diagnose_watch(self.watch)

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
        terminal = sys.stderr.isatty()
        told_at = harvested_at = time.monotonic()
        try:
            while True:
                await asyncio.sleep(TERMINAL_SECONDS)
                now = time.monotonic()
                self._save(RecordingWriter.advance)
                if now - harvested_at >= HARVEST_SECONDS:
                    harvest(self.ingest, self.watch)
                    harvested_at = now
                if terminal or now - told_at >= FILE_SECONDS:
                    line = said(self.ingest.snapshot())[:79]
                    sys.stderr.write(f"\r{line:<79}" if terminal else line + "\n")
                    sys.stderr.flush()
                    told_at = now
        finally:
            if terminal:
                sys.stderr.write(f"\r{'':79}\r")
                sys.stderr.flush()


# --- programs ----------------------------------------------------------------------------------


async def attach(
    config: Config,
    seconds: float,
    *,
    save: Path | None = None,
    driver: GpuDriver | None = None,
    proc_root: Path = PROC,
) -> Diagnosis:
    """Watches what goes on, without a load of ours.

    Raises:
        NothingSeenError: No line came and a log could not be read.
        CannotRecordError: The recording cannot be written.
        FatalSourceError: A source cannot be read by this process.
    """
    end = time.monotonic() + seconds

    def said(snapshot: Snapshot) -> str:
        left = max(0.0, end - time.monotonic())
        return f"watching, {left:.0f} s left, {_state(snapshot)}"

    async with _recording(save) as writer:
        live = LiveWatch(config, writer, driver=driver, proc_root=proc_root)
        await live.until(asyncio.sleep(seconds), said, alone=False)
        diagnosis = live.diagnosis()
    if not live.watch.batches and live.troubles:
        told = "; ".join(f"{name}: {why}" for name, why in live.troubles.items())
        raise NothingSeenError(f"no batch line of a server was seen: {told}")
    return diagnosis


async def drive(
    config: Config,
    load: DrivenLoad,
    *,
    save: Path | None = None,
    driver: GpuDriver | None = None,
    proc_root: Path = PROC,
) -> tuple[Diagnosis, tuple[LoadResult, ...]]:
    """Watches while a load of ours is driven; hands out what it measured too, point by point.

    Raises:
        NoTargetError: There is no server to load at that address.
        PlanError: The load cannot be driven as asked for.
        NothingMeasuredError: All requests failed.
        CannotRecordError: The recording cannot be written.
        FatalSourceError: A source cannot be read by this process.
    """
    newest: LoadProgress | None = None
    sweep: Sweep | None = None
    is_driven = False

    def note(progress: LoadProgress) -> None:
        nonlocal newest
        newest = progress

    async def work() -> None:
        nonlocal sweep, is_driven
        target = await find_target(load.url, load.token)
        check_fits(target, load.plan)
        sweep = Sweep(
            target, load.plan, load.concurrencies, emit=live.ingest.handle, on_progress=note
        )
        await sweep.run()
        is_driven = True
        await asyncio.sleep(SETTLE_SECONDS)

    def said(snapshot: Snapshot) -> str:
        far = "reading the last lines" if is_driven else progress_text(newest)
        return f"{far}, {_state(snapshot)}"

    async with _recording(save) as writer:
        live = LiveWatch(config, writer, driver=driver, proc_root=proc_root)
        await live.until(work(), said, alone=True)
        points = sweep.result().points if sweep is not None else ()
        diagnosis = live.diagnosis()
    if not live.watch.batches:
        told = "".join(f"; {name}: {why}" for name, why in live.troubles.items())
        log.warning(
            "no batch line was seen: is this the log of the server at %s?%s", load.url, told
        )
    seen = live.was_stopped and live.watch.batches  # while warming up: ordinary traffic
    if not seen and not any(point.output_tokens for point in points):
        raise _nothing_measured(load.url, points)
    return diagnosis, points


def _nothing_measured(url: str, points: tuple[LoadResult, ...]) -> NothingMeasuredError:
    told = troubles(points)
    if not told or not any(point.ended_by is EndReason.ALL_FAILED for point in points):
        told.insert(0, "the load ended before anything was measured; let it run longer")
    return NothingMeasuredError(f"cannot load {url}: {'. '.join(told)}")


@contextlib.asynccontextmanager
async def _recording(path: Path | None) -> AsyncIterator[RecordingWriter | None]:
    if path is None:
        yield None
        return
    writer = open_recording(path, "--save")
    try:
        yield writer
    finally:
        try:
            writer.close()
        except OSError as error:
            log.error("cannot finish the recording %s: %s", path, error.strerror)  # noqa: TRY400  # the remedy counts, not the stack


# --- progress ----------------------------------------------------------------------------------


def _state(snapshot: Snapshot) -> str:
    """Occupancy, running and queued requests of the first pipeline, as far as they are known."""
    server = snapshot.servers[0] if snapshot.servers else None
    pipeline = server.pipelines[0] if server is not None and server.pipelines else None
    occupancy = running = None
    if pipeline is not None:
        occupancy, running = pipeline.occupancy_ratio, pipeline.slots.running_requests
    stages = server.stages if server is not None else ()
    queues = [stage.queued_reqs for stage in stages if stage.queued_reqs is not None]
    share = "?" if occupancy is None else f"{occupancy:.0%}"
    requests = "?" if running is None else f"{running:.0f}"
    return f"occupancy {share}, running {requests}, queue {max(queues) if queues else '?'}"
