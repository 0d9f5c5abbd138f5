"""A stage's GPU: decode as a CUDA graph of small memory-bound kernels, NCCL, events around it all."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from bench.activity_load import Anchor, event, repeated
from bench.nccl_device import HIDDEN_SIZE, MOST_BATCH, POLL_SECONDS, Links, packed
from bench.nccl_scenarios import Order
from bench.nccl_truth import Span

_LAYERS = 20
_WIDTH = 4096
_ROWS = 16
_KEPT_SENDS = 16
_LARGE_ROWS = 4096
"""64 MiB of hidden states: more than NCCL takes before somebody receives."""


class DecodeGraph:
    """Reads 0.7 GB of weights in products of few rows, as decode does; one replay is a unit."""

    def __init__(self) -> None:
        shape = (_WIDTH, _WIDTH)
        weights = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(_LAYERS)]
        self._keep: list[torch.Tensor] = weights
        state = torch.randn(_ROWS, _WIDTH, device="cuda", dtype=torch.bfloat16)
        aside = torch.empty_like(state)

        def layers() -> None:
            for weight in weights:
                torch.mm(state, weight, out=aside)
                torch.tanh(aside, out=state)

        warm = torch.cuda.Stream()
        with torch.cuda.stream(warm):
            layers()
        warm.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            layers()
        torch.cuda.synchronize()
        self._keep += [state, aside]
        self.work = repeated(graph.replay)
        """Queues work of so many seconds on the current stream."""


def prefill_work() -> Callable[[float], object]:
    """Compute-bound work: large matrix products."""
    left = torch.randn(_WIDTH, _WIDTH, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(left)
    return repeated(lambda: torch.mm(left, left, out=product))


class GpuDevice:
    """See `PipelineDevice`. Receives on the scheduler's stream, sends on streams beside it.

    The content of the tensors is not used: what counts is when they come.
    """

    def __init__(self, links: Links) -> None:
        """Builds the graph and meets the neighbors over NCCL.

        Raises:
            RuntimeError: CUDA or NCCL does not work.
        """
        self._links = links
        self._main, self._forward, self._copy = (torch.cuda.Stream() for _ in range(3))
        self._sending = {kind: torch.cuda.Stream() for kind in links.groups}
        self._decode, self._prefill = DecodeGraph().work, prefill_work()
        torch.cuda.synchronize()
        cells = (MOST_BATCH, HIDDEN_SIZE)
        self._incoming = torch.zeros(cells, device="cuda", dtype=torch.bfloat16)
        self._outgoing = torch.zeros(cells, device="cuda", dtype=torch.bfloat16)
        self._large = torch.zeros(_LARGE_ROWS, HIDDEN_SIZE, device="cuda", dtype=torch.bfloat16)
        self._result = torch.zeros(MOST_BATCH, device="cuda", dtype=torch.int64)
        self._passed_on = torch.zeros(MOST_BATCH, device="cuda", dtype=torch.int64)
        self._host_result = torch.zeros(MOST_BATCH, dtype=torch.int64).pin_memory()
        self._unsent: deque[Any] = deque()
        self._sent: deque[Any] = deque(maxlen=_KEPT_SENDS)
        self._works: list[tuple[Any, Any]] = []
        self._waits: list[tuple[Any, Any]] = []
        self._launched: Any = None
        self._first: Anchor | None = None
        self.receive_order, self.send_order = links.receive_order, links.send_order
        self._warm_up()
        self._meet()

    def _warm_up(self) -> None:
        """Everything once, while no receive spins: what is loaded or allocated late may wait for it."""
        with torch.cuda.stream(self._forward):
            for work in (self._prefill, self._decode):
                self._work(work, 0.002)
        with torch.cuda.stream(self._copy):
            self._host_result.copy_(self._passed_on, non_blocking=True)
        torch.cuda.synchronize()

    def _meet(self) -> None:
        """A first message on each way: communicators are made by it."""
        rank, last = self._links.rank, self._links.stages - 1
        for kind in ("hidden", "onward"):
            if rank > 0:
                self._receive(kind, self._links.before, self._incoming[:1])
            if rank < last:
                self._send(kind, self._links.next, self._outgoing[:1])
        if last > 0 and rank == last:
            self._send("back", 0, self._outgoing[:1])
        elif last > 0 and rank == 0:
            self._receive("back", last, self._incoming[:1])
        torch.cuda.synchronize()

    # --- truth ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """See `PipelineDevice`."""
        torch.cuda.synchronize()
        self._works, self._waits = [], []
        self._first = Anchor()

    def end(self) -> tuple[list[Span], list[Span], float]:
        """See `PipelineDevice`; event time is stretched onto the wall clock between two anchors."""
        torch.cuda.synchronize()
        first, last = self._first, Anchor()
        assert first is not None
        passed = first.seconds_to(last.event)
        scale = (last.at - first.at) / passed

        def spans(marks: list[tuple[Any, Any]]) -> list[Span]:
            return [
                (first.at + scale * first.seconds_to(a), first.at + scale * first.seconds_to(b))
                for a, b in marks
            ]

        found = spans(self._works), spans(self._waits)
        self._works, self._waits = [], []
        return *found, abs(last.at - first.at - passed)

    # --- the loop's ----------------------------------------------------------------------------

    def launch(self, order: Order) -> None:
        """See `Device`."""
        self._forward.wait_stream(self._main)
        with torch.cuda.stream(self._forward):
            self._work(self._prefill if order.prefill else self._decode, order.seconds)
        if self._links.rank == self._links.stages - 1:
            self._unsent.append(self._launched)

    def receive_hidden(self, order: Order) -> None:
        """See `Device`."""
        self._links.hear("hidden", self._links.before)
        self._receive("hidden", self._links.before, self._incoming[: order.batch])

    def send_hidden(self, order: Order) -> None:
        """See `Device`."""
        self._links.tell("hidden", self._links.next, packed(order))
        self._sending["hidden"].wait_event(self._launched)
        self._send("hidden", self._links.next, self._outgoing[: order.batch])

    def send_result(self) -> None:
        """See `Device`."""
        launched = self._unsent.popleft()
        if self._links.stages == 1:
            self._main.wait_event(launched)
            return
        self._links.tell("back", 0, (0,) * 5)
        self._sending["back"].wait_event(launched)
        self._send("back", 0, self._result)

    def pass_result_on(self) -> None:
        """See `Device`."""
        self._links.tell("onward", self._links.next, (0,) * 5)
        self._send("onward", self._links.next, self._passed_on)

    def receive_result(self) -> None:
        """See `Device`."""
        if self._links.stages > 1:
            kind = "back" if self._links.rank == 0 else "onward"
            self._links.hear(kind, self._links.before)
            self._receive(kind, self._links.before, self._passed_on)
        self._copy.wait_stream(self._main)
        with torch.cuda.stream(self._copy):
            self._host_result.copy_(self._passed_on, non_blocking=True)
        self._copy.synchronize()

    # --- beside the loop -----------------------------------------------------------------------

    def poll(self, seconds: float) -> None:
        """See `PipelineDevice`."""
        until = time.time() + seconds
        first, last = self._links.rank == 0, self._links.rank == self._links.stages - 1
        over = False
        flag = torch.zeros(1, device="cuda", dtype=torch.int64)
        while not over:
            if first:
                time.sleep(POLL_SECONDS)
                over = time.time() >= until
                flag.fill_(int(over))
                torch.cuda.synchronize()
            else:
                self._receive("hidden", self._links.before, flag)
                with torch.cuda.stream(self._main):
                    over = bool(flag.item())
            if not last:
                self._send("hidden", self._links.next, flag)
                self._sending["hidden"].synchronize()

    def probe(self, what: str, seconds: float) -> None:
        """See `PipelineDevice`."""
        if what == "work":
            with torch.cuda.stream(self._forward):
                for _ in range(max(1, round(seconds / 0.5))):
                    self._work(self._decode, 0.5)
        elif what == "idle" or self._links.stages == 1:
            time.sleep(seconds)
        else:
            self._probe_link(what, seconds)
        torch.cuda.synchronize()

    def _probe_link(self, what: str, seconds: float) -> None:
        """A receive whose sender comes late, or a send whose receiver does."""
        rank, last = self._links.rank, self._links.stages - 1
        tensor = self._large if what == "send" else self._incoming[:32]
        if what == "small_receive":
            tensor = self._result[:8]
        late = rank == 0 if what != "send" else rank % 2 == 1
        if late:
            time.sleep(seconds)
        if rank > 0:
            self._receive("hidden", self._links.before, tensor)
            self._sending["hidden"].wait_stream(self._main)
        if rank < last:
            self._send("hidden", self._links.next, tensor)

    # --- marks ---------------------------------------------------------------------------------

    def _work(self, work: Callable[[float], object], seconds: float) -> None:
        start, self._launched = event(), event()
        start.record()
        work(seconds)
        self._launched.record()
        self._works.append((start, self._launched))

    def _receive(self, kind: str, source: int, tensor: torch.Tensor) -> None:
        with torch.cuda.stream(self._main):
            start, end = event(), event()
            start.record()
            dist.irecv(tensor, source, group=self._links.groups[kind]).wait()
            end.record()
        self._waits.append((start, end))

    def _send(self, kind: str, to: int, tensor: torch.Tensor) -> None:
        """No wait in the truth: a send whose receiver is late is not resident (docs/measurements.md)."""
        with torch.cuda.stream(self._sending[kind]):
            work = dist.isend(tensor, to, group=self._links.groups[kind])
            work.wait()
        self._sent.append(work)
