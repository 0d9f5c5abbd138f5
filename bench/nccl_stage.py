"""One stage of the pipeline, a process of its own: told what to play by lines on stdin.

Prints SGLang's batch lines, and answers that begin with `@`. Not for use alone; see nccl_pipeline.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.nccl_device import Links, PipelineDevice, open_device
from bench.nccl_scenarios import Order, Scenario, named, orders, single_stream
from bench.nccl_stage_loop import BatchLog, bounded, run_stage
from bench.nccl_truth import StageTruth, union, without

ANSWER = "@"
_PR_SET_PDEATHSIG = 1


def take_title(title: str) -> None:
    """Writes over the own command line, as setproctitle does."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end; state is field 3
    words = title.encode()[: end - start - 1]
    ctypes.memmove(start, words.ljust(end - start, b"\0"), end - start)


def die_with_parent() -> None:
    """Asks the kernel to kill this process with the one that started it: a GPU may spin for ever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def say(text: str) -> None:
    """One whole line at once."""
    os.write(sys.stdout.fileno(), text.encode() + b"\n")


class Stage:
    """Does what it is told, one thing after the other."""

    def __init__(self, rank: int, stages: int, device: PipelineDevice, folder: Path) -> None:
        self._rank = rank
        self._stages = stages
        self._device = device
        self._folder = folder

    def obey(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Does one thing; the answer."""
        match told["do"]:
            case "begin":
                self._device.begin()
                return {}
            case "play":
                return self._play(named(told["scenario"]), told["part"], told["seconds"])
            case "probe":
                self._device.probe(told["what"], told["seconds"])
                return {}
            case "truth":
                return self._truth(told["scenario"])
        raise ValueError(f"cannot {told['do']}")

    def _play(self, scenario: Scenario, part: str, seconds: float) -> dict[str, Any]:
        if scenario.old_idle:
            self._device.poll(seconds)
            return {"tokens": 0}
        sizes = scenario.sizes(self._stages)
        if part == "single":
            sizes = single_stream(self._stages, len(sizes))
        log = BatchLog(self._rank, say)
        own = None
        if self._rank == 0:
            own = bounded(
                orders(scenario, self._stages, sizes),
                len(sizes),
                seconds,
                stall_seconds=scenario.stall_seconds if part == "main" else 0.0,
                stall_every=scenario.stall_every,
            )

        def seconds_of(order: Order) -> float:
            batch, prefill = order.batch, order.prefill
            return scenario.seconds_of(batch, self._stages, self._rank, prefill=prefill)

        passes = run_stage(
            self._rank,
            self._stages,
            len(sizes),
            self._device,
            log,
            orders=own,
            seconds_of=seconds_of,
        )
        return {"tokens": log.tokens, "passes": passes}

    def _truth(self, scenario: str) -> dict[str, Any]:
        works, waits, doubt = self._device.end()
        works = union(works)
        waits = without(union(waits), works)
        truth = StageTruth(scenario, self._rank, works, waits, len(works), doubt)
        path = self._folder / f"{scenario}-{self._rank}.json"
        path.write_text(truth.to_json(), encoding="ascii")
        return {"file": str(path), "passes": len(works), "doubt_seconds": doubt}


def main() -> None:
    """Joins the others, then obeys until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--stages", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    arguments = parser.parse_args()
    rank, stages, folder = arguments.rank, arguments.stages, arguments.folder
    die_with_parent()
    take_title(f"sglang::scheduler_PP{rank}")
    try:
        links = Links(rank, stages, folder / "meeting", cuda=arguments.device == "cuda")
        stage = Stage(rank, stages, open_device(links), folder)
        say(ANSWER + json.dumps({"ready": links.name}))
        for line in sys.stdin:
            say(ANSWER + json.dumps(stage.obey(json.loads(line))))
    except Exception as error:  # noqa: BLE001  # the process's boundary: the other side must know
        traceback.print_exc()
        say(ANSWER + json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}))
        os._exit(1)  # other threads may hang in NCCL
    os._exit(0)


if __name__ == "__main__":
    main()
