"""GPUs → records: one thread owns the driver, the event loop only receives what it hands over.

A driver call may hang for as long as it likes: nothing here waits for it. `health.up` turns false
after 5 s of it, and the rings keep what happens meanwhile as long as they can.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from exporter.gpu_driver import GpuDriver
from exporter.records import (
    DriverHealth,
    Record,
    SourceHealth,
    SourceUnavailableError,
    XidError,
)
from exporter.sources import Emit, Position
from exporter.sources.gpus.rounds import GpuRounds
from exporter.sources.gpus.xid_watch import XidWatch

HUNG_SECONDS = 5.0
"""A driver call that takes longer makes the source down until it returns."""
_ENDING_SECONDS = 1.0
_OPEN_SECONDS = 10.0
_CLOSE_SECONDS = 0.6
_LOOK_SECONDS = 1.0


class _Life:
    """What one `open` started: a thread, and the way from it back to the event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.stop = threading.Event()
        self.go = threading.Event()
        self.opened: asyncio.Future[Exception | None] = self.loop.create_future()
        self.ended: asyncio.Future[Exception | None] = self.loop.create_future()
        self.waiting: list[Record] = []

    def tell(self, function: Callable[..., None], *args: object) -> None:
        """Runs a function on the event loop soon; does nothing when that is closed."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            self.stop.set()


class GpuSampler:
    """The GPUs of this machine as a source of records.

    Attributes:
        health: Whether the driver answers; `last_error` names the remedy.
        driver_health: Driver calls, errors and samples; replaced by newer counts once a round.
    """

    def __init__(
        self,
        driver: GpuDriver,
        *,
        proc_root: Path = Path("/proc"),
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        period_seconds: float = 1.0,
    ) -> None:
        self.health = SourceHealth("nvml")
        self.driver_health = DriverHealth()
        self._driver = driver
        self._wall = wall
        self._monotonic = monotonic
        self._period_seconds = period_seconds
        self._xids = XidWatch(driver, self._report_xid, monotonic)
        self._rounds = GpuRounds(
            driver, proc_root=proc_root, wall=wall, monotonic=monotonic, xids=self._xids
        )
        self._life: _Life | None = None
        self._thread: threading.Thread | None = None
        self._emit: Emit | None = None

    @property
    def persistence_mode_off(self) -> bool:
        """Whether a GPU was found that re-initializes after each moment without a client."""
        return self._rounds.persistence_mode_off

    # --- on the event loop ---------------------------------------------------------------------

    async def open(self, position: Position | None) -> None:
        """Starts the driver on a thread of its own; GPUs have no position to resume from.

        Raises:
            SourceUnavailableError: No driver, no GPU, or a call that hangs.
            FatalSourceError: Only a new process helps.
        """
        if self._thread is not None and self._thread.is_alive() and self._hung() is None:
            # One that failed a moment ago is about to end.
            await asyncio.to_thread(self._thread.join, _ENDING_SECONDS)
        if self._thread is not None and self._thread.is_alive():
            raise SourceUnavailableError(self._hung() or "cannot read GPUs: still closing; wait")
        life = self._life = _Life()
        self._thread = threading.Thread(target=self._work, args=(life,), name="nvml", daemon=True)
        self._thread.start()
        done, _ = await asyncio.wait({life.opened}, timeout=_OPEN_SECONDS)
        if not done:
            await self.close()
            raise SourceUnavailableError(self._hung() or "cannot read GPUs: the driver is slow")
        error = life.opened.result()
        if error is not None:
            raise error
        self.health.up = True
        self.health.last_error = None

    async def run(self, emit: Emit) -> None:
        """Emits what each round found until canceled.

        Raises:
            SourceUnavailableError: The driver is gone; open it again, later.
            FatalSourceError: Only a new process helps.
        """
        life = self._life
        if life is None:
            raise SourceUnavailableError("cannot read GPUs: not opened")
        self._emit = emit
        self._flush(life)
        life.go.set()
        try:
            while not life.ended.done():
                await asyncio.wait({life.ended}, timeout=_LOOK_SECONDS)
                self._notice_hang()
        finally:
            life.go.clear()
            self._emit = None
        error = life.ended.result()
        if error is not None:
            raise error

    def position(self) -> Position | None:
        """None: what the rings hold is asked of the driver."""
        return None

    async def close(self) -> None:
        """Lets the thread end; does not wait for a call that hangs."""
        life, self._life = self._life, None
        self.health.up = False
        if life is None:
            return
        life.stop.set()
        life.go.set()
        await asyncio.wait({life.ended}, timeout=_CLOSE_SECONDS)

    def _notice_hang(self) -> None:
        hung = self._hung()
        if hung is not None or self.health.up is False:
            self.health.up = hung is None
            self.health.last_error = hung

    def _hung(self) -> str | None:
        in_call = self._rounds.tally.in_call
        if in_call is None or self._monotonic() - in_call[1] < HUNG_SECONDS:
            return None
        return (
            f"cannot read GPUs: {in_call[0]} has not returned for more than {HUNG_SECONDS:.0f} s; "
            "see dmesg for NVRM and Xid lines, and whether nvidia-smi hangs too"
        )

    def _accept(self, life: _Life, records: Sequence[Record], health: DriverHealth | None) -> None:
        if life is not self._life:
            return  # closed meanwhile
        life.waiting.extend(records)
        if health is not None:
            self.driver_health.call_counts = health.call_counts
            self.driver_health.call_seconds = health.call_seconds
            self.driver_health.errors = health.errors
            self.driver_health.samples = health.samples
        self._flush(life)

    def _flush(self, life: _Life) -> None:
        emit = self._emit
        if emit is None:
            return
        records, life.waiting = life.waiting, []
        for record in records:
            emit(record)

    # --- on the sampling thread ----------------------------------------------------------------

    def _work(self, life: _Life) -> None:
        error: Exception | None = None
        try:
            self._hand_over(life, self._rounds.start())
            life.tell(_settle, life.opened, None)
            self._go_round(life)
        except Exception as caught:  # noqa: BLE001  # the thread's boundary: `run` raises it
            error = caught
        life.tell(self._accept, life, self._rounds.stop(), self._rounds.tally.copy())
        life.tell(_settle, life.opened, error)
        life.tell(_settle, life.ended, error)

    def _go_round(self, life: _Life) -> None:
        """One round a period, on a fixed beat; a late round is followed by the next beat's."""
        period = self._period_seconds
        beat = self._monotonic()
        while life.go.wait() and not life.stop.is_set():
            self._hand_over(life, self._rounds.take())
            beat += period * max(1, (self._monotonic() - beat) // period)
            life.stop.wait(max(0.0, beat - self._monotonic()))

    def _hand_over(self, life: _Life, records: Sequence[Record]) -> None:
        self._xids.follow(self._rounds.gpu_by_index, self._rounds.tally)
        life.tell(self._accept, life, records, self._rounds.tally.copy())

    def _report_xid(self, gpu: int, xid: int) -> None:
        life = self._life
        if life is not None:
            life.tell(self._accept, life, (XidError(gpu, self._wall(), xid),), None)


def _settle(future: asyncio.Future[Exception | None], error: Exception | None) -> None:
    if not future.done():
        future.set_result(error)
