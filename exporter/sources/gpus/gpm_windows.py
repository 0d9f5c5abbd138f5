"""GPM: two alternating samples of one GPU → windows of SM, DRAM and tensor activity.

GPM has one client at a time (DCGM profiling may hold it): refused, it degrades to no windows and
tries again later. It never takes a GPU down: a lost GPU shows by its rings.
"""

from __future__ import annotations

from collections.abc import Callable

from exporter.gpu_driver import UNSUPPORTED_CODES, DriverError, GpmBuffer, GpmMetrics, GpuDriver
from exporter.records import GpmWindow, Signal
from exporter.sources.gpus.call_tally import CallTally
from exporter.sources.gpus.pacing import BackOff

LAG_SECONDS = 0.110
"""A sample shows the counters as they were 60 to 160 ms before it (measured on an H200)."""
SHORTEST_SECONDS = 0.1
"""NVIDIA's hard limit between two samples; below it most windows read 0 or NaN."""
_CLOCK_STEP_SECONDS = 0.05


class GpmWindows:
    """The GPM samples of one GPU; belongs to the sampling thread."""

    def __init__(
        self,
        driver: GpuDriver,
        tally: CallTally,
        *,
        wall: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._driver = driver
        self._tally = tally
        self._wall = wall
        self._monotonic = monotonic
        self._back_off = BackOff(2.0, 60.0)
        self._supported: bool | None = None
        self._buffers: list[GpmBuffer] = []
        self._earlier_at: tuple[float, float] | None = None

    def take(self, gpu: int, index: int) -> GpmWindow | None:
        """Takes a sample; the window since the one before, or `None` if there is none to tell.

        Args:
            gpu: The GPU's number in records.
            index: Its index in the library.
        """
        if self._supported is False or not self._back_off.may_try(self._monotonic()):
            return None
        try:
            window = self._take(gpu, index)
        except DriverError as error:
            self._earlier_at = None
            if error.code in UNSUPPORTED_CODES:
                self._supported = False
            else:
                self._back_off.fail(self._monotonic())
            return None
        if window is not None:
            self._back_off.reset()
            self._tally.count_samples(Signal.GPM, 1)
        return window

    def interrupt(self) -> None:
        """The GPU was away: the next sample starts a new window."""
        self._earlier_at = None

    def release(self) -> None:
        """Frees the buffers before the library shuts down; afterwards all is probed anew."""
        for buffer in self._buffers:
            self._driver.gpm_free(buffer)
        self._buffers.clear()
        self._supported = None
        self._earlier_at = None

    def _take(self, gpu: int, index: int) -> GpmWindow | None:
        call, driver = self._tally.call, self._driver
        if self._supported is None:
            self._supported = call(driver.gpm_supported, index)
            if not self._supported:
                return None
        while len(self._buffers) < 2:
            self._buffers.append(call(driver.gpm_buffer))
        earlier, later = self._buffers
        asked_at = self._monotonic()
        call(driver.gpm_sample, index, later)
        started, now = self._earlier_at, (self._wall(), self._monotonic())
        if now[1] - asked_at > SHORTEST_SECONDS:
            self._earlier_at = None  # a call that hung: nobody knows when it took its sample
            return None
        if started is not None and now[1] - started[1] < SHORTEST_SECONDS:
            return None  # the earlier sample stays; the next window is the longer
        self._buffers.reverse()
        self._earlier_at = now
        if started is None:
            return None
        metrics = call(driver.gpm_metrics, index, earlier, later)
        elapsed = now[0] - started[0]
        if abs(elapsed - (now[1] - started[1])) > _CLOCK_STEP_SECONDS or metrics == GpmMetrics():
            return None  # the wall clock stepped inside the window, or the card answered nothing
        return GpmWindow(
            gpu=gpu,
            started_at=started[0] - LAG_SECONDS,
            ended_at=now[0] - LAG_SECONDS,
            sm_ratio=metrics.sm_ratio,
            occupancy_ratio=metrics.occupancy_ratio,
            dram_ratio=metrics.dram_ratio,
            tensor_ratio=metrics.tensor_ratio,
        )
