"""Loads a GPU in a known rhythm and writes down when a kernel was resident (a process of its own).

Prints one JSON line when ready, starts at a line on stdin, ends after the last pattern. Kernels
are queued back to back inside a stretch, and CUDA events around each stretch say when it began and
ended on the GPU. Event time is tied to the wall clock before and after each pattern.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.duty_cycle_truth import PATTERNS, Pattern, Truth

PAUSE_SECONDS = 1.0
MILLISECONDS = 1000.0
_ANCHOR_TRIES = 50
_SPIN_SECONDS = 0.002
_MATRIX = 8192  # a product of two takes 1.4 ms on an H200
_COPY_BYTES = 256 << 20  # a copy takes 0.12 ms there
_COPIES_PER_GRAPH = 20


def event() -> Any:
    """An event that keeps the time."""
    return torch.cuda.Event(enable_timing=True)


def matmul() -> Callable[[], object]:
    """Compute bound: one large kernel a call."""
    left = torch.randn(_MATRIX, _MATRIX, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(left)
    return lambda: torch.mm(left, left, out=product)


def graph() -> Callable[[], object]:
    """Memory bound, as decode is: a CUDA graph of many small kernels a call."""
    source = torch.zeros(_COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)
    torch.add(source, 1.0, out=target)  # loads the kernel: a capture must not
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(_COPIES_PER_GRAPH):
            torch.add(source, 1.0, out=target)
    return captured.replay


KINDS: dict[str, Callable[[], Callable[[], object]]] = {"matmul": matmul, "graph": graph}


def seconds_per_call(work: Callable[[], object], calls: int = 40) -> float:
    """How long one call keeps the GPU busy, measured over many."""
    for _ in range(calls):
        work()
    start, end = event(), event()
    start.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / MILLISECONDS / calls


class Anchor:
    """An event whose instant is also known on the wall clock, within `width_seconds`."""

    def __init__(self) -> None:
        self.width_seconds = float("inf")
        for _ in range(_ANCHOR_TRIES):
            candidate = event()
            before = time.time()
            candidate.record()
            candidate.synchronize()
            after = time.time()
            if after - before < self.width_seconds:
                self.width_seconds = after - before
                self.event, self.at = candidate, (before + after) / 2

    def seconds_to(self, later: Any) -> float:
        """GPU seconds from here to another event."""
        return float(self.event.elapsed_time(later)) / MILLISECONDS


def wait_until(instant: float) -> None:
    """Sleeps, then spins the last moment, so that stretches start on time."""
    nap = instant - time.time() - _SPIN_SECONDS
    if nap > 0:
        time.sleep(nap)
    while time.time() < instant:
        pass


def run(pattern: Pattern, work: Callable[[], object], call_seconds: float, seconds: float) -> Truth:
    """Plays one pattern and returns what truly happened."""
    calls = max(1, round(pattern.duty * pattern.period_seconds / call_seconds))
    first, stretches = Anchor(), []
    began_at = time.time()
    for turn in range(int(seconds / pattern.period_seconds)):
        wait_until(began_at + turn * pattern.period_seconds)
        start, end = event(), event()
        asked_at = time.time()
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        stretches.append((asked_at, start, end, time.time()))
    ended_at = began_at + int(seconds / pattern.period_seconds) * pattern.period_seconds
    wait_until(ended_at)
    last = Anchor()
    scale = (last.at - first.at) / first.seconds_to(last.event)

    def at(moment: Any) -> float:
        return first.at + scale * first.seconds_to(moment)

    edges = [(at(start), at(end)) for _, start, end, _ in stretches]
    outside = [
        max(asked_at - start, end - done_at)
        for (asked_at, _, _, done_at), (start, end) in zip(stretches, edges, strict=True)
    ]
    clock = {
        "drift_ppm": (scale - 1) * 1e6,
        "anchor_width_us": max(first.width_seconds, last.width_seconds) * 1e6,
        "most_outside_host_stamps_us": max(outside)
        * 1e6,  # not above 0, but for the anchors' error
    }
    return Truth(pattern, began_at, ended_at, edges, clock)


def main() -> None:
    """Runs all patterns, one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of one pattern")
    arguments = parser.parse_args()
    works = {kind: prepare() for kind, prepare in KINDS.items()}
    torch.cuda.synchronize()
    card = torch.cuda.get_device_properties(0)
    uuid = "GPU-" + str(card.uuid).removeprefix("GPU-")
    print(json.dumps({"uuid": uuid, "gpu": card.name}), flush=True)
    sys.stdin.readline()
    with arguments.output.open("w", encoding="ascii") as output:
        for pattern in PATTERNS:
            work = works[pattern.kind]
            truth = run(pattern, work, seconds_per_call(work), arguments.seconds)
            print(truth.to_json(), file=output, flush=True)
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
