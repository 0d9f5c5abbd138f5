"""The program `diagnose --experiment`: the same load before and after a live setting is changed.

In: a load, and the value to try. Out: the outcome of the server as it is, with the experiment beside
it. The old value is put back whatever happens: errors, a server that is away for a moment, signals.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from exporter.config import Config
from exporter.diagnose.live import (
    SETTLE_SECONDS,
    DrivenLoad,
    Driving,
    check_measured,
    nothing_measured,
    warn_if_silent,
)
from exporter.diagnose.live_watch import LiveWatch, recording_at
from exporter.diagnose.outcome import Experiment, Outcome
from exporter.diagnosis.watch import Watch
from exporter.gpu_driver import GpuDriver
from exporter.live_sources import PROC
from exporter.load.failures import LoadError
from exporter.load.live_setting import (
    CapChange,
    NotRestoredError,
    check_settable,
    micro_batch_cap,
)
from exporter.load.micro_batch_cap import CapControl, CapState, SettingRefusedError
from exporter.load.result import EndReason
from exporter.snapshot import Snapshot

log = logging.getLogger(__name__)

HUNG_UP_SECONDS = 5.0
"""SGLang aborts a streamed request 2 s after it has noticed that nobody listens any more
(srt/managers/tokenizer_manager.py, create_abort_task); until then it keeps its slot."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A cap on micro-batches to try, and the server to try it on."""

    control: CapControl
    value: int


async def drive_experiment(
    config: Config,
    load: DrivenLoad,
    trial: Trial,
    *,
    save: Path | None = None,
    driver: GpuDriver | None = None,
    proc_root: Path = PROC,
) -> Outcome:
    """The outcome of a load under the server as it is, and of the same under another value.

    What goes wrong after the first load is in the outcome's experiment.

    Raises:
        LoadError: The load cannot be driven, or measured nothing; or the value cannot be tried, as
            is known before anything is driven.
        CannotRecordError: The recording cannot be written.
        FatalSourceError: A source cannot be read by this process.
    """
    async with recording_at(save) as writer:
        live = LiveWatch(config, writer, driver=driver, proc_root=proc_root)
        course = _Course(live, load, trial)
        await live.until(course.run(), course.say, alone=True)
        outcome = course.outcome()
        warn_if_silent(live, load.url)
        check_measured(load.url, outcome, was_stopped=live.was_stopped)
        return outcome


class _Course:
    """The way there and back: measure, change, measure, put back."""

    def __init__(self, live: LiveWatch, load: DrivenLoad, trial: Trial) -> None:
        self._live = live
        self._trial = trial
        self._url = load.url
        self._first = Driving(load, live.ingest.handle, lambda: warn_if_silent(live, load.url))
        self._second = Driving(load, live.ingest.handle)
        self._old: CapState | None = None
        self._before: Watch | None = None
        """What was seen until the first load was over; `None`: it is not."""
        self._error: str | None = None
        self._is_over = False
        self._restore_command: str | None = None

    async def run(self) -> None:
        self._old = await self._trial.control.read()
        check_settable(self._old, self._trial.value)
        await self._first.drive()
        if not self._first.points[-1].is_whole:
            self._fail("the other value was not tried: the load before it broke off")
        else:
            await asyncio.sleep(self._rest_seconds())
            self._before = self._live.start_anew()
            await self._try()
        await asyncio.sleep(SETTLE_SECONDS)
        self._is_over = True

    def _rest_seconds(self) -> float:
        """Until the first load is out of the slots and all is printed."""
        cut_off = self._first.points[-1].ended_by is EndReason.DURATION
        return HUNG_UP_SECONDS if cut_off else SETTLE_SECONDS

    async def _try(self) -> None:
        try:
            async with micro_batch_cap(self._trial.control, self._trial.value) as change:
                self._old = CapState(change.name, change.old, None)
                try:
                    await self._measure(change)
                except LoadError as error:
                    self._fail(str(error))
        except NotRestoredError as error:
            self._restore_command = error.command
            self._fail(str(error))
        except LoadError as error:
            self._fail(str(error))

    async def _measure(self, change: CapChange) -> None:
        await self._second.drive()
        if not self._second.points[-1].is_whole:
            raise nothing_measured(self._url, self._second.points)
        if (await self._trial.control.read()).value != change.new:
            raise SettingRefusedError(
                f"the server did not keep {change.name}={change.new} to the end of the load: was it "
                "restarted, or set by someone else?"
            )

    def _fail(self, error: str) -> None:
        log.error("the experiment failed: %s", error)
        self._error = error if self._error is None else f"{self._error}. Then: {error}"

    def say(self, snapshot: Snapshot) -> str:
        """How far it is, in a line."""
        number, driving = (1, self._first) if self._before is None else (2, self._second)
        return f"{number}/2 {driving.say(snapshot)}"

    def outcome(self) -> Outcome:
        """What there is, at the end or so far; nothing more may come."""
        outcome = self._live.outcome(self._first.points, watch=self._before)
        if self._old is None:
            return outcome
        error, failed = self._error, self._error is not None
        if error is None and not self._is_over and not self._is_measured():
            error = "stopped by a signal before the value was set"
            if self._before is not None:
                error = "stopped by a signal before the load under the new value was measured"
        experiment = Experiment(
            self._old.name,
            self._old.value,
            self._trial.value,
            self._after(outcome),
            error,
            failed,
            self._restore_command,
        )
        return replace(outcome, experiment=experiment)

    def _is_measured(self) -> bool:
        return bool(self._second.points) and self._second.points[-1].is_whole

    def _after(self, before: Outcome) -> Outcome | None:
        points = self._second.points
        if not any(point.output_tokens for point in points) or self._old is None:
            return None
        # Nothing tells the watch otherwise: a server prints its arguments at its start only.
        self._live.watch.facts[before.pipeline[0]][self._old.name] = self._trial.value
        return self._live.outcome(points, pipeline=before.pipeline)
