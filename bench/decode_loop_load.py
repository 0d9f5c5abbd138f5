"""A loop like that of decode: replay a CUDA graph of many small kernels, wait for it, again.

A process of its own. Prints one JSON line when ready and runs until its stdin closes; the instant
at which each pass ended (`time.monotonic`, as doubles) is appended to a file every quarter second.
`--device cpu` spins instead, for machines without a GPU.
"""

from __future__ import annotations

import argparse
import json
import select
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path

WRITE_EVERY_SECONDS = 0.25
PASS_SECONDS = 0.0005
"""About what one pass takes, as a decode step of a small stage does."""
_KERNELS = 100
_WARM_UP_PASSES = 200


def cpu_pass() -> None:
    """Keeps a core busy as long as a pass takes."""
    until = time.perf_counter() + PASS_SECONDS
    while time.perf_counter() < until:
        pass


def cuda_pass() -> tuple[dict[str, str], Callable[[], None]]:
    """Which card it is, and one pass on it: launch, wait."""
    import torch  # noqa: PLC0415  # not where there is no GPU

    weights = torch.zeros(1 << 19, device="cuda")  # 2 MiB a kernel: 3 to 5 us each
    result = torch.empty_like(weights)
    torch.add(weights, 1.0, out=result)  # loads the kernel: a capture must not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_KERNELS):
            torch.add(weights, 1.0, out=result)

    def work() -> None:
        graph.replay()
        torch.cuda.synchronize()

    card = torch.cuda.get_device_properties(0)
    uuid = "GPU-" + str(card.uuid).removeprefix("GPU-")
    return {"uuid": uuid, "gpu": card.name}, work


def main() -> None:
    """Runs until its stdin closes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args()
    about, work = cuda_pass() if given.device == "cuda" else ({"gpu": "none"}, cpu_pass)
    for _ in range(_WARM_UP_PASSES):
        work()
    print(json.dumps(about), flush=True)
    ends = array("d")
    with given.output.open("ab", buffering=0) as output:
        write_at = time.monotonic()
        while True:
            work()
            now = time.monotonic()
            ends.append(now)
            if now >= write_at:
                output.write(ends.tobytes())
                del ends[:]
                write_at = now + WRITE_EVERY_SECONDS
                if select.select([sys.stdin], [], [], 0)[0]:
                    return


if __name__ == "__main__":
    main()
