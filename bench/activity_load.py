"""Runs the mixes on a GPU and writes down what happened when (a process of its own).

Prints one JSON line when ready, starts at a line on stdin, ends after the last mix. CUDA events
stand around each stretch; event time is tied to the wall clock before and after each mix.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.activity_mixes import IDLE_SECONDS, MIX_SETS, Mix, Truth

MILLISECONDS = 1000.0
NANOSECONDS = 1e9
FEW_SMS = 40
_MATRIX = 4096  # a product of two takes 0.2 ms on an H200
_COPY_BYTES = 128 << 20  # a copy takes 0.06 ms there
_ANCHOR_TRIES = 50
_SPIN_SECONDS = 0.002

Work = Callable[[float], object]
"""Queues work of so many seconds."""


def kernels() -> ctypes.CDLL:
    """Builds the kernels beside this file and loads them."""
    source = Path(__file__).with_name("activity_kernels.cu")
    library = Path(tempfile.mkdtemp()) / "activity_kernels.so"
    build = ["nvcc", "-O2", "-arch=native", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([*build, "-o", str(library), str(source)], check=True)
    loaded = ctypes.CDLL(str(library))
    for name in ("launch_spin", "launch_compute"):
        getattr(loaded, name).argtypes = (
            *(ctypes.c_int, ctypes.c_ulonglong, ctypes.c_void_p, ctypes.c_void_p),
        )
    return loaded


def launch(function: Any, blocks: int, seconds: float, memory: torch.Tensor) -> None:
    """Queues one of the own kernels."""
    stream = torch.cuda.current_stream().cuda_stream
    code = function(blocks, int(seconds * NANOSECONDS), memory.data_ptr(), stream)
    if code:
        raise RuntimeError(f"the kernel was not launched: CUDA error {code}")


def repeated(call: Callable[[], object]) -> Work:
    """As many calls as fill the time, by how long one takes."""
    for _ in range(20):
        call()
    start, end = event(), event()
    start.record()
    for _ in range(200):
        call()
    end.record()
    end.synchronize()
    seconds_per_call = start.elapsed_time(end) / MILLISECONDS / 200

    def work(seconds: float) -> None:
        for _ in range(max(1, round(seconds / seconds_per_call))):
            call()

    return work


def works(library: ctypes.CDLL, memory: torch.Tensor) -> dict[str, Work]:
    """What can work, by kind."""
    left = torch.randn(_MATRIX, _MATRIX, device="cuda", dtype=torch.bfloat16)
    product = torch.empty_like(left)
    source = torch.zeros(_COPY_BYTES, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return {
        "matmul": repeated(lambda: torch.mm(left, left, out=product)),
        "copy": repeated(lambda: target.copy_(source)),
        "few_sms": lambda seconds: launch(library.launch_compute, FEW_SMS, seconds, memory),
    }


def event() -> Any:
    """An event that keeps the time."""
    return torch.cuda.Event(enable_timing=True)


class Anchor:
    """An event whose instant is also known on the wall clock."""

    def __init__(self) -> None:
        width = float("inf")
        for _ in range(_ANCHOR_TRIES):
            candidate = event()
            before = time.time()
            candidate.record()
            candidate.synchronize()
            after = time.time()
            if after - before < width:
                width, self.event, self.at = after - before, candidate, (before + after) / 2

    def seconds_to(self, later: Any) -> float:
        """GPU seconds from here to another event."""
        return float(self.event.elapsed_time(later)) / MILLISECONDS


def wait_until(instant: float) -> None:
    """Sleeps, then spins the last moment, so that periods start on time."""
    nap = instant - time.time() - _SPIN_SECONDS
    if nap > 0:
        time.sleep(nap)
    while time.time() < instant:
        pass


def run(mix: Mix, seconds: float, wait: Work, work: Work) -> Truth:
    """Plays one mix and returns what truly happened."""
    first, stretches = Anchor(), []
    began_at = at = time.time()
    for waiting, working, period in mix.cycles(random.Random(mix.label), seconds):
        wait_until(at)
        marks = [event() for _ in range(3)]
        marks[0].record()
        wait(waiting)
        marks[1].record()
        work(working)
        marks[2].record()
        marks[2].synchronize()
        stretches.append(marks)
        at = max(at + period, time.time())
    wait_until(at)
    last = Anchor()
    scale = (last.at - first.at) / first.seconds_to(last.event)
    edges = [[first.at + scale * first.seconds_to(mark) for mark in marks] for marks in stretches]
    return Truth(
        mix,
        began_at,
        at,
        [(start, turn) for start, turn, _ in edges],
        [(turn, end) for _, turn, end in edges],
    )


def main() -> None:
    """Runs all mixes, one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="of one mix")
    parser.add_argument("--mixes", choices=MIX_SETS, required=True)
    arguments = parser.parse_args()
    library = kernels()
    memory = torch.zeros(1, device="cuda")
    kinds = works(library, memory)
    torch.cuda.synchronize()
    print(json.dumps({"gpu": torch.cuda.get_device_properties(0).name}), flush=True)
    sys.stdin.readline()
    time.sleep(IDLE_SECONDS)
    with arguments.output.open("w", encoding="ascii") as output:
        for mix in MIX_SETS[arguments.mixes]:

            def wait(seconds: float, blocks: int = mix.spin_blocks) -> None:
                launch(library.launch_spin, blocks, seconds, memory)

            truth = run(mix, arguments.seconds, wait, kinds[mix.kind])
            print(truth.to_json(), file=output, flush=True)


if __name__ == "__main__":
    main()
