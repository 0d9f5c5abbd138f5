"""The loop of one stage, as SGLang's PP scheduler runs it from 0.5.7 on; knows no torch.

Each turn belongs to a slot: ask for requests and pass them on, receive the slot's hidden states
(metadata first), launch the forward, hand on results, receive the next slot's result and process
it, send the hidden states. Results go round the ring: from the last stage to 0, and on from stage
to stage until the last has its own again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from bench.nccl_scenarios import INTERVAL, PREFILL_TOKENS, Order
from exporter.simulator.log_text import decode_batch, prefill_batch, stamped
from exporter.simulator.pipeline import DecodeResult, PrefillResult

KV_TOKENS = 262_144
OVER = Order(0, 0, False, True, 0.0)


class Device(Protocol):
    """What a stage computes and talks with; a receive waits, a send does not."""

    def receive_order(self) -> Order:
        """From the stage before, on the host."""

    def send_order(self, order: Order) -> None:
        """To the next stage."""

    def receive_hidden(self, order: Order) -> None:
        """Waits for the metadata on the host, then queues the receive."""

    def send_hidden(self, order: Order) -> None:
        """Of the batch launched last."""

    def launch(self, order: Order) -> None:
        """Queues the forward of a batch."""

    def send_result(self) -> None:
        """Of the oldest forward whose result was not sent yet; from the last stage to stage 0."""

    def pass_result_on(self) -> None:
        """The result received last, to the next stage."""

    def receive_result(self) -> None:
        """Returns when the result has come to the host."""


class BatchLog:
    """Prints SGLang's batch lines as results are processed, one Decode line every so many."""

    def __init__(
        self,
        stage: int,
        emit: Callable[[str], object],
        *,
        interval: int = INTERVAL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.tokens = 0
        """Made since the log began."""
        self._stage = stage
        self._emit = emit
        self._interval = interval
        self._clock = clock
        self._results = self._since_line = 0
        self._printed_at = self._prefilled_at = clock()
        self._lengths: dict[int, int] = {}

    def note(self, order: Order) -> None:
        """Takes the result of a batch."""
        at = self._clock()
        if order.prefill:
            self._note_prefill(order, at)
            return
        self._lengths[order.slot] = self._lengths.get(order.slot, 0) + order.batch
        self.tokens += order.batch
        self._since_line += order.batch
        self._results += 1
        if self._results % self._interval:
            return
        rate = self._since_line / max(at - self._printed_at, 1e-6)
        self._since_line, self._printed_at = 0, at
        result = DecodeResult(at, order.batch, 0, self._used(), ())
        text = decode_batch(result, KV_TOKENS, graph=True, throughput=rate)
        self._emit(stamped(at, text, self._stage))

    def _note_prefill(self, order: Order, at: float) -> None:
        new = order.batch * PREFILL_TOKENS
        self._lengths[order.slot] = new
        rate = new / max(at - self._prefilled_at, 1e-6)
        self._prefilled_at = at
        result = PrefillResult(at, order.batch, new, 0, 0, 0, self._used(), ())
        text = prefill_batch(result, KV_TOKENS, graph=False, throughput=rate)
        self._emit(stamped(at, text, self._stage))

    def _used(self) -> int:
        return min(sum(self._lengths.values()), KV_TOKENS // 2)


def bounded(
    orders: Iterator[Order],
    slots: int,
    seconds: float,
    *,
    stall: Callable[[float], object] = time.sleep,
    stall_seconds: float = 0.0,
    stall_every: float = 0.0,
    clock: Callable[[], float] = time.time,
) -> Iterator[Order]:
    """Stage 0's orders for so many seconds, then empty turns until all results are back.

    Whole rounds only, so that every slot ends where it began. Stalls before an order: the host
    stops, and what was launched runs to its end.
    """
    until = clock() + seconds
    next_stall = clock() + stall_every
    while clock() < until:
        for _ in range(slots):
            if stall_seconds and clock() >= next_stall:
                stall(stall_seconds)
                next_stall += stall_every
            yield next(orders)
    for turn in range(slots + 1):
        yield Order(turn % slots, 0, False, False, 0.0)
    yield OVER


def run_stage(
    stage: int,
    stages: int,
    slots: int,
    device: Device,
    log: BatchLog,
    *,
    orders: Iterator[Order] | None = None,
    seconds_of: Callable[[Order], float] = lambda order: order.seconds,
) -> int:
    """Runs turns until told that it is over; returns how many batches were launched.

    Args:
        stage: Its rank.
        stages: Of the pipeline.
        slots: pp_size + pp_async_batch_depth.
        device: Links and forward.
        log: Told of each result.
        orders: Of stage 0; `None` on the others, which receive theirs.
        seconds_of: How long this stage works on a batch.
    """
    batches: list[Order | None] = [None] * slots
    passed_on = False
    launched = turn = 0
    first, last = stage == 0, stage == stages - 1
    while True:
        order = next(orders) if orders is not None else device.receive_order()
        if not last:
            device.send_order(order)
        if order.over:
            return launched
        slot, following = turn % slots, (turn + 1) % slots
        leaving = (turn + stages) % slots
        own = order._replace(slot=slot, seconds=seconds_of(order)) if order.batch else None
        batches[slot] = own
        if own is not None:
            if not first:
                device.receive_hidden(own)
            device.launch(own)
            launched += 1
        _hand_on(
            device, leaves=last and batches[leaving] is not None, passes=passed_on and not last
        )
        ready = batches[following]
        passed_on = ready is not None
        if ready is not None:
            device.receive_result()
            log.note(ready)
        if own is not None and not last:
            device.send_hidden(own)
        turn += 1


def _hand_on(device: Device, *, leaves: bool, passes: bool) -> None:
    """A result of the last stage to stage 0, or the one received in the turn before to the next."""
    if leaves:
        device.send_result()
    if passes:
        device.pass_result_on()
