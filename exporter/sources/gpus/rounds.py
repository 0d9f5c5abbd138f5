"""All GPUs, once a second: rings first, since only they forget; a GPU in trouble costs itself only.

The driver takes its time for each call, whatever is new: what keeps for longer than two rounds is
asked of half of the GPUs in one round, of the others in the next.

Goes in: a driver and clocks. Comes out: the records of one round. Knows no thread and no loop.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from exporter.gpu_driver import DriverError, GpuDriver
from exporter.records import (
    GpuProcess,
    GpuProcesses,
    Record,
    Signal,
    SourceUnavailableError,
)
from exporter.sources.gpus.call_tally import CallTally
from exporter.sources.gpus.pacing import BackOff, Due
from exporter.sources.gpus.processes import read_parent, read_title
from exporter.sources.gpus.watch import GpuLostError, GpuWatch

_PROCESSES_SECONDS = 5.0
_RESTART_AFTER_SECONDS = 60.0
_REMEDIES = {
    "LIBRARY_NOT_FOUND": "libnvidia-ml.so.1 was not found; install the NVIDIA driver, or in a "
    "container start it with the NVIDIA container toolkit (--gpus all)",
    "DRIVER_NOT_LOADED": "the NVIDIA kernel driver is not loaded; see nvidia-smi and modprobe nvidia",
    "NO_PERMISSION": "the exporter's user may not open /dev/nvidia*; see their owner and mode, and "
    "DeviceAllow= of its unit",
}
_GO_ON = (
    "the exporter goes on with the log alone; without GPUs here, turn GPU reading off "
    "(--no-nvml, or nvml: false)"
)


class XidGate(Protocol):
    """Whoever waits inside the library on another thread; must be out of it for a restart."""

    def pause(self) -> bool:
        """Keeps it outside; false if it is stuck inside."""


class NobodyWaits:
    """The gate where no other thread uses the library."""

    def pause(self) -> bool:
        """Always outside."""
        return True


class GpuRounds:
    """The GPUs of this machine; belongs to the sampling thread, survives restarts of the library.

    Attributes:
        tally: Counts of driver calls.
        persistence_mode_off: Whether a GPU re-initializes after each idle moment without clients.
    """

    def __init__(
        self,
        driver: GpuDriver,
        *,
        proc_root: Path,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
        xids: XidGate | None = None,
    ) -> None:
        self.tally = CallTally(monotonic)
        self.persistence_mode_off = False
        self._driver = driver
        self._proc_root = proc_root
        self._wall = wall
        self._monotonic = monotonic
        self._xids = xids or NobodyWaits()
        self._watches: list[GpuWatch] = []
        self._processes_due = Due()
        self._number = 0
        self._restart_back_off = BackOff(60.0, 600.0)

    @property
    def gpu_by_index(self) -> dict[int, int]:
        """Library index → number in records, of the GPUs that answer."""
        return {
            watch.index: watch.gpu
            for watch in self._watches
            if watch.up and watch.index is not None
        }

    # --- the library ---------------------------------------------------------------------------

    def start(self) -> list[Record]:
        """Initializes the library and learns who is there; a GPU known before keeps its number.

        Raises:
            SourceUnavailableError: No library, no driver or no GPU; the message has the remedy.
            FatalSourceError: Only a new process helps.
        """
        try:
            self.tally.call(self._driver.start)
            count = self.tally.call(self._driver.count)
        except DriverError as error:
            raise _unavailable(error) from error
        if count == 0:
            raise SourceUnavailableError(
                f"cannot read GPUs: NVML works but lists none; in a container: --gpus all; {_GO_ON}"
            )
        records = self._recognize(count)
        self._each(records, self._note_persistence_mode)
        return records

    def stop(self) -> list[Record]:
        """Gives everything back, if nobody is stuck in the library; the GPUs are not up then."""
        if self._xids.pause():
            self._release()
        records: list[Record] = []
        self._each(records, lambda watch: watch.go_down("NOT_READ"))
        return records

    def _release(self) -> None:
        for watch in self._watches:
            watch.release()
        self._driver.stop()

    def _recognize(self, count: int) -> list[Record]:
        """Matches the library's indices with the GPUs known, by UUID."""
        records: list[Record] = []
        self.persistence_mode_off = False
        missing = list(self._watches)
        for index in range(count):
            try:
                identity = self.tally.call(self._driver.identity, index)
            except DriverError as error:
                # Who it is cannot be told: the one that was there, unless that one shows elsewhere.
                _append(records, self._at(index, missing).go_down(error.code))
                continue
            watch = self._of(identity.uuid, index)
            watch.index = index
            if watch in missing:
                missing.remove(watch)
            try:
                records.extend(watch.come_up(identity))
            except DriverError as error:
                _append(records, watch.go_down(error.code))
        for watch in missing:
            watch.index = None
            _append(records, watch.go_down("GPU_NOT_FOUND"))
        return records

    def _of(self, uuid: str, index: int) -> GpuWatch:
        for watch in self._watches:
            if watch.uuid == uuid or (watch.uuid is None and watch.index == index):
                return watch
        return self._new_watch(index)

    def _at(self, index: int, missing: list[GpuWatch]) -> GpuWatch:
        for watch in missing:
            if watch.index == index:
                missing.remove(watch)
                return watch
        return self._new_watch(index)

    def _new_watch(self, index: int) -> GpuWatch:
        taken = {watch.gpu for watch in self._watches}
        gpu = index if index not in taken else max(taken) + 1
        watch = GpuWatch(gpu, self._driver, self.tally, wall=self._wall, monotonic=self._monotonic)
        watch.index = index
        self._watches.append(watch)
        return watch

    def _note_persistence_mode(self, watch: GpuWatch) -> None:
        if watch.ask(self._driver.persistence_mode) is False:
            self.persistence_mode_off = True

    # --- rounds --------------------------------------------------------------------------------

    def take(self) -> list[Record]:
        """Asks every GPU once: power rings, which hold 2.4 s on an H200, before all else.

        Utilization rings (14 s) take their turn with the gauges.

        Raises:
            SourceUnavailableError: All GPUs are gone and the library does not start again.
            FatalSourceError: Only a new process helps.
        """
        records = self._bring_back()
        self._each(records, lambda watch: watch.drain(Signal.POWER))
        self._number += 1
        self._each_second(records, lambda watch: watch.drain(Signal.UTILIZATION), self._number)
        self._each_second(records, GpuWatch.read_gauges, self._number + 1)
        self._each(records, GpuWatch.take_gpm_window)
        if self._processes_due.is_due(self._monotonic(), _PROCESSES_SECONDS):
            self._list_processes(records)
        self._each(records, GpuWatch.end_round)
        return records

    def _each(self, records: list[Record], step: Callable[[GpuWatch], Record | None]) -> None:
        """Does one step for every GPU that is up; one that is lost in it goes down alone."""
        for watch in self._watches:
            if not watch.up:
                continue
            try:
                record = step(watch)
            except GpuLostError as lost:
                record = watch.go_down(lost.code)
            _append(records, record)

    def _each_second(
        self, records: list[Record], step: Callable[[GpuWatch], Record | None], number: int
    ) -> None:
        """Does one step for every second GPU, the others having their turn with the next number."""

        def turn(watch: GpuWatch) -> Record | None:
            return step(watch) if watch.is_new or (watch.gpu + number) % 2 == 0 else None

        self._each(records, turn)

    def _list_processes(self, records: list[Record]) -> None:
        gpus: list[int] = []
        processes: list[GpuProcess] = []

        def step(watch: GpuWatch) -> None:
            running = watch.ask(self._driver.processes)
            if running is None:
                return
            gpus.append(watch.gpu)
            for pid, memory_bytes in running:
                title = read_title(self._proc_root, pid)
                parent = read_parent(self._proc_root, pid)
                processes.append(GpuProcess(watch.gpu, pid, title, memory_bytes, parent))

        self._each(records, step)
        records.append(GpuProcesses(self._wall(), tuple(gpus), tuple(processes)))

    # --- loss and return -----------------------------------------------------------------------

    def _bring_back(self) -> list[Record]:
        """Retries the GPUs whose wait is over; restarts the library where that alone can help."""
        now = self._monotonic()
        due = [watch for watch in self._watches if not watch.up and watch.back_off.may_try(now)]
        if not due:
            return []
        if self._restart_helps(now) and self._xids.pause():
            self._release()
            return self.start()
        records: list[Record] = []
        for watch in due:
            try:
                records.extend(watch.retry())
            except DriverError:
                watch.back_off.fail(now)
            except GpuLostError:
                watch.back_off.fail(now)
        return records

    def _restart_helps(self, now: float) -> bool:
        """At each retry while all GPUs are gone; else rarely: it costs the others a GPM window."""
        if not any(watch.up for watch in self._watches):
            return True
        longest = max(now - watch.down_at for watch in self._watches if not watch.up)
        if longest < _RESTART_AFTER_SECONDS or not self._restart_back_off.may_try(now):
            return False
        self._restart_back_off.fail(now)
        return True


def _append(records: list[Record], record: Record | None) -> None:
    if record is not None:
        records.append(record)


def _unavailable(error: DriverError) -> SourceUnavailableError:
    """No library, no driver: what was asked, what it answered, what to do."""
    remedy = _REMEDIES.get(error.code, "see whether nvidia-smi works")
    return SourceUnavailableError(
        f"cannot read GPUs: {error.call} answered {error.code}: {remedy}; {_GO_ON}"
    )
