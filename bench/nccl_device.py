"""What a stage talks and computes with: gloo for metadata, NCCL for tensors, a CUDA graph as forward.

On a CPU everything goes over gloo, and a forward is a sleep. Each direction of tensors has a
communicator of its own, so that no send waits behind a receive of the other direction.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from bench.nccl_scenarios import Order
from bench.nccl_stage_loop import OVER, Device
from bench.nccl_truth import Span

TIMEOUT = timedelta(seconds=40)
HIDDEN_SIZE = 8192
MOST_BATCH = 1024
POLL_SECONDS = 0.002
"""How long stage 0 of an idle server of the old style rests between two looks for requests."""
KINDS = ("hidden", "onward", "back")
"""Hidden states; results from stage to stage; results from the last stage to 0."""
_TAGS = {"order": 1, "hidden": 2, "onward": 3, "back": 4}
_MICRO = 1e6


class PipelineDevice(Device, Protocol):
    """With what the bench asks for beside the loop."""

    def begin(self) -> None:
        """Starts keeping what happens."""

    def end(self) -> tuple[list[Span], list[Span], float]:
        """Works, waits, and how far their edges may be off (seconds)."""

    def poll(self, seconds: float) -> None:
        """Idles as 0.4.9 to 0.5.6 did: requests are asked for by a receive of tensors."""

    def probe(self, what: str, seconds: float) -> None:
        """One state for a while: idle, receive, small_receive, send, work."""


class Links:
    """Who is beside this stage, and the way to them.

    Attributes:
        groups: Process groups of tensors by kind.
    """

    def __init__(self, rank: int, stages: int, meeting: Path, *, cuda: bool) -> None:
        """Meets the other stages at a file.

        Raises:
            RuntimeError: They did not come in time.
        """
        self.rank, self.stages, self.cuda = rank, stages, cuda
        if cuda:
            torch.cuda.set_device(rank)
        self.name = torch.cuda.get_device_name(rank) if cuda else "cpu"
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=stages,
            timeout=TIMEOUT,
        )
        backend = "nccl" if cuda else "gloo"
        self.groups = {
            kind: dist.new_group(list(range(stages)), timeout=TIMEOUT, backend=backend)
            for kind in KINDS
        }
        self._pending: deque[tuple[Any, torch.Tensor]] = deque()

    @property
    def next(self) -> int:
        """The stage after this one in the ring."""
        return (self.rank + 1) % self.stages

    @property
    def before(self) -> int:
        """The stage before this one in the ring."""
        return (self.rank - 1) % self.stages

    def tell(self, kind: str, to: int, values: tuple[int, ...]) -> None:
        """Sends metadata without waiting."""
        tensor = torch.tensor(values, dtype=torch.int64)
        self._pending.append((dist.isend(tensor, to, tag=_TAGS[kind]), tensor))
        while len(self._pending) > 8:
            self._pending.popleft()[0].wait()

    def hear(self, kind: str, source: int) -> tuple[int, ...]:
        """Waits on the host for metadata."""
        tensor = torch.zeros(5, dtype=torch.int64)
        dist.recv(tensor, source, tag=_TAGS[kind])
        return tuple(tensor.tolist())

    def send_order(self, order: Order) -> None:
        """To the next stage."""
        self.tell("order", self.next, packed(order))

    def receive_order(self) -> Order:
        """From the stage before."""
        return unpacked(self.hear("order", self.before))


def packed(order: Order) -> tuple[int, ...]:
    """An order as numbers."""
    seconds = round(order.seconds * _MICRO)
    return order.slot, order.batch, int(order.prefill), int(order.over), seconds


def unpacked(numbers: tuple[int, ...]) -> Order:
    """The order of numbers."""
    slot, batch, prefill, over, seconds = numbers
    return Order(slot, batch, bool(prefill), bool(over), seconds / _MICRO)


class CpuDevice:
    """Gloo and sleeping: the loop's logic without a GPU; truth by the host's clock."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._works: list[Span] = []
        self._waits: list[Span] = []
        self._own_results = 0
        self._sent: deque[tuple[Any, torch.Tensor]] = deque()
        self.receive_order, self.send_order = links.receive_order, links.send_order

    def begin(self) -> None:
        """See `PipelineDevice`."""
        self._works, self._waits = [], []

    def end(self) -> tuple[list[Span], list[Span], float]:
        """See `PipelineDevice`."""
        return self._works, self._waits, 0.0

    def launch(self, order: Order) -> None:
        """See `Device`."""
        start = time.time()
        time.sleep(order.seconds)
        self._works.append((start, time.time()))

    def receive_hidden(self, order: Order) -> None:
        """See `Device`."""
        self._links.hear("hidden", self._links.before)
        self._receive("hidden", self._links.before, order.batch)

    def send_hidden(self, order: Order) -> None:
        """See `Device`."""
        self._links.tell("hidden", self._links.next, packed(order))
        self._send("hidden", self._links.next, order.batch)

    def send_result(self) -> None:
        """See `Device`."""
        if self._links.stages == 1:
            self._own_results += 1
            return
        self._send("back", 0, 1)

    def pass_result_on(self) -> None:
        """See `Device`."""
        self._send("onward", self._links.next, 1)

    def receive_result(self) -> None:
        """See `Device`."""
        if self._links.stages > 1:
            kind = "back" if self._links.rank == 0 else "onward"
            self._receive(kind, self._links.before, 1)

    def poll(self, seconds: float) -> None:
        """See `PipelineDevice`."""
        until = time.time() + seconds
        first, last = self._links.rank == 0, self._links.rank == self._links.stages - 1
        over = False
        while not over:
            if first:
                time.sleep(POLL_SECONDS)
                over = time.time() >= until
            else:
                over = self._receive("hidden", self._links.before, 1).flatten()[0].item() > 0
            if not last:
                self._send("hidden", self._links.next, 1, float(over))

    def probe(self, what: str, seconds: float) -> None:
        """See `PipelineDevice`."""
        if what == "work":
            self.launch(OVER._replace(seconds=seconds))
        elif what == "idle" or self._links.stages == 1:
            time.sleep(seconds)
        else:
            if self._links.rank:
                self._receive("hidden", self._links.before, 1)
            else:
                time.sleep(seconds)
            if self._links.rank < self._links.stages - 1:
                self._send("hidden", self._links.next, 1)

    def _receive(self, kind: str, source: int, rows: int) -> torch.Tensor:
        start = time.time()
        tensor = torch.zeros(rows, 8)
        dist.recv(tensor, source, group=self._links.groups[kind])
        self._waits.append((start, time.time()))
        return tensor

    def _send(self, kind: str, to: int, rows: int, value: float = 0.0) -> None:
        tensor = torch.full((rows, 8), value)
        self._sent.append((dist.isend(tensor, to, group=self._links.groups[kind]), tensor))
        while len(self._sent) > 8:
            self._sent.popleft()[0].wait()


def open_device(links: Links) -> PipelineDevice:
    """The GPU of this stage, or none."""
    if not links.cuda:
        return CpuDevice(links)
    from bench.nccl_gpu import GpuDevice  # noqa: PLC0415  # needs CUDA

    return GpuDevice(links)
