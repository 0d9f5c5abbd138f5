"""XID events: a thread of their own that waits for the driver, half a second at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from exporter.gpu_driver import UNSUPPORTED_CODES, DriverError, GpuDriver
from exporter.sources.gpus.call_tally import CallTally
from exporter.sources.gpus.pacing import BackOff

_WAIT_SECONDS = 0.5
_PAUSE_SECONDS = 3.0

Report = Callable[[int, int], None]
"""Takes (gpu, xid); called on the waiting thread."""


class XidWatch:
    """Reports XIDs of the GPUs it follows. Used by the sampling thread; owns the waiting one.

    Some XIDs never arrive, because the GPU is gone already: loss is told from error codes.
    """

    def __init__(self, driver: GpuDriver, report: Report, monotonic: Callable[[], float]) -> None:
        self._driver = driver
        self._report = report
        self._monotonic = monotonic
        self._followed: dict[int, int] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._errors: queue.SimpleQueue[DriverError] = queue.SimpleQueue()

    def follow(self, gpu_by_index: Mapping[int, int], tally: CallTally) -> None:
        """Registers for these GPUs, by library index, unless they are followed already."""
        while not self._errors.empty():
            error = self._errors.get_nowait()
            tally.count_error(error.call, error.code)
        if self._followed is not None and gpu_by_index.items() <= self._followed.items():
            return
        if not gpu_by_index or not self.pause():
            return
        self._followed = dict(gpu_by_index)
        try:
            watched = tally.call(self._driver.watch_xids, sorted(gpu_by_index))
        except DriverError:
            return  # counted; asked again when a GPU comes back or the library restarts
        if not watched:
            return
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=(self._stop, self._followed), name="nvml-xids", daemon=True
        )
        self._thread.start()

    def pause(self) -> bool:
        """Leaves the library; false if the thread is still inside it after 3 s."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_PAUSE_SECONDS)
            if self._thread.is_alive():
                return False
        self._thread = None
        self._followed = None
        return True

    def _watch(self, stop: threading.Event, gpu_by_index: Mapping[int, int]) -> None:
        back_off = BackOff(1.0, 30.0)
        while not stop.is_set():
            if not back_off.may_try(self._monotonic()):
                stop.wait(_WAIT_SECONDS)
                continue
            try:
                event = self._driver.wait_for_xid(_WAIT_SECONDS)
            except DriverError as error:
                self._errors.put(error)
                if error.code in UNSUPPORTED_CODES:
                    return
                back_off.fail(self._monotonic())
                continue
            back_off.reset()
            if event is not None and event[0] in gpu_by_index:
                self._report(gpu_by_index[event[0]], event[1])
