"""The programs `diagnose --attach` and `diagnose --url`: watch for a while, or under a load of ours.

In: a configuration, and how long or under which load. Out: the outcome, with what the load measured.
The records of the load take the path of all others: model, watch, recording.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from exporter.config import Config
from exporter.diagnose.live_watch import LiveWatch, recording_at, state_text
from exporter.diagnose.outcome import Outcome
from exporter.gpu_driver import GpuDriver
from exporter.live_sources import PROC
from exporter.load.detection import check_fits, find_target
from exporter.load.failures import LoadError
from exporter.load.plan import LoadPlan
from exporter.load.report import progress_text, troubles
from exporter.load.result import EndReason, LoadProgress, LoadResult, LoadStage
from exporter.load.sweep import Sweep
from exporter.records import Record
from exporter.snapshot import Snapshot

log = logging.getLogger(__name__)

SETTLE_SECONDS = 2.0
"""Log and rings lag by up to this: they are read on for so long after a load."""


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


async def attach(
    config: Config,
    seconds: float,
    *,
    save: Path | None = None,
    driver: GpuDriver | None = None,
    proc_root: Path = PROC,
) -> Outcome:
    """Watches what goes on, without a load of ours.

    Raises:
        NothingSeenError: No line came and a log could not be read.
        CannotRecordError: The recording cannot be written.
        FatalSourceError: A source cannot be read by this process.
    """
    end = time.monotonic() + seconds

    def said(snapshot: Snapshot) -> str:
        left = max(0.0, end - time.monotonic())
        return f"watching, {left:.0f} s left, {state_text(snapshot)}"

    async with recording_at(save) as writer:
        live = LiveWatch(config, writer, driver=driver, proc_root=proc_root)
        await live.until(asyncio.sleep(seconds), said, alone=False)
        if not live.watch.batches and live.troubles:
            told = "; ".join(f"{name}: {why}" for name, why in live.troubles.items())
            raise NothingSeenError(f"no batch line of a server was seen: {told}")
        return live.outcome()


async def drive(
    config: Config,
    load: DrivenLoad,
    *,
    save: Path | None = None,
    driver: GpuDriver | None = None,
    proc_root: Path = PROC,
) -> Outcome:
    """Watches while a load of ours is driven; the outcome has what it measured too.

    Raises:
        NoTargetError: There is no server to load at that address.
        PlanError: The load cannot be driven as asked for.
        NothingMeasuredError: All requests failed.
        CannotRecordError: The recording cannot be written.
        FatalSourceError: A source cannot be read by this process.
    """
    async with recording_at(save) as writer:
        live = LiveWatch(config, writer, driver=driver, proc_root=proc_root)
        driving = Driving(load, live.ingest.handle, lambda: warn_if_silent(live, load.url))
        await live.until(driving.run(), driving.say, alone=True)
        outcome = live.outcome(driving.points)
        warn_if_silent(live, load.url)
        check_measured(load.url, outcome, was_stopped=live.was_stopped)
        return outcome


def warn_if_silent(live: LiveWatch, url: str) -> None:
    """Warns where the log has said nothing about a load so far."""
    if not live.heard:
        told = "".join(f"; {name}: {why}" for name, why in live.troubles.items())
        log.warning("no batch line was seen: is this the log of the server at %s?%s", url, told)


def check_measured(url: str, outcome: Outcome, *, was_stopped: bool) -> None:
    """Checks that a load of ours brought something to tell.

    Raises:
        NothingMeasuredError: All its requests failed, or it was too short.
    """
    seen = was_stopped and outcome.watch.batches  # while warming up: ordinary traffic
    if not seen and not any(point.output_tokens for point in outcome.points):
        raise nothing_measured(url, outcome.points)


class Driving:
    """A load under way, from the search for its server to the last lines about it."""

    def __init__(
        self,
        load: DrivenLoad,
        emit: Callable[[Record], None],
        on_warm: Callable[[], None] | None = None,
    ) -> None:
        """Drives nothing yet; `emit` takes the records of the load.

        `on_warm` is called once, when a first warm-up is over.
        """
        self._load = load
        self._emit = emit
        self._on_warm = on_warm
        self._sweep: Sweep | None = None
        self._newest: LoadProgress | None = None
        self._is_over = False

    @property
    def points(self) -> tuple[LoadResult, ...]:
        """What was measured so far."""
        return () if self._sweep is None else self._sweep.result().points

    async def run(self) -> None:
        """Drives it, and waits for what is printed late."""
        await self.drive()
        await asyncio.sleep(SETTLE_SECONDS)

    async def drive(self) -> None:
        """Finds the server and drives the load to its end.

        Raises:
            NoTargetError: There is no server to load at that address.
            PlanError: The load cannot be driven as asked for.
        """
        load = self._load
        target = await find_target(load.url, load.token)
        check_fits(target, load.plan)
        self._sweep = Sweep(
            target, load.plan, load.concurrencies, emit=self._emit, on_progress=self._note
        )
        await self._sweep.run()
        self._is_over = True

    def progress(self) -> str:
        """How far the load is."""
        return "reading the last lines" if self._is_over else progress_text(self._newest)

    def say(self, snapshot: Snapshot) -> str:
        """How far the load is, and what the pipeline does."""
        return f"{self.progress()}, {state_text(snapshot)}"

    def _note(self, progress: LoadProgress) -> None:
        before, self._newest = self._newest, progress
        was_warming = before is not None and before.stage is LoadStage.WARM_UP
        if was_warming and progress.stage is LoadStage.MEASURING and self._on_warm is not None:
            self._on_warm()
            self._on_warm = None


def nothing_measured(url: str, points: tuple[LoadResult, ...]) -> NothingMeasuredError:
    """Why a load measured nothing, in words."""
    told = troubles(points)
    if not told or not any(point.ended_by is EndReason.ALL_FAILED for point in points):
        told.insert(0, "the load ended before anything was measured; let it run longer")
    return NothingMeasuredError(f"cannot load {url}: {'. '.join(told)}")
