"""The two loads of the duty-cycle measurement: a real GPU, and the tests' fake driver."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from bench.duty_cycle_truth import PATTERNS, Truth
from tests.fake_nvml import FakeNvml

ROOT = Path(__file__).parents[1]
READY_WITHIN_SECONDS = 120.0


class Load(Protocol):
    """Keeps one GPU busy in known rhythms and writes the truth to a file."""

    uuid: str
    gpu: str
    """Its model."""

    def environment(self) -> Mapping[str, str]:
        """What one more process needs to see the GPU."""

    def go(self) -> None:
        """Starts the first pattern."""

    def is_over(self) -> bool:
        """Whether the last pattern is done.

        Raises:
            RuntimeError: It broke; the message says how.
        """

    def close(self) -> None:
        """Ends it, done or not."""


class TorchLoad:
    """Kernels on the first CUDA device, in a process of their own."""

    def __init__(self, truth: Path, seconds: float) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "bench.duty_cycle_load"),
                *("--output", str(truth), "--seconds", str(seconds)),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        watchdog = threading.Timer(READY_WITHIN_SECONDS, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        watchdog.cancel()
        if not said:
            raise RuntimeError("the load did not start; see what it said above")
        ready = json.loads(said)
        self.uuid, self.gpu = ready["uuid"], ready["gpu"]

    def environment(self) -> Mapping[str, str]:
        """See `Load`."""
        return {}

    def go(self) -> None:
        """See `Load`."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def is_over(self) -> bool:
        """See `Load`."""
        code = self._process.poll()
        if code:
            raise RuntimeError(f"the load ended with exit code {code}; see what it said above")
        return code == 0

    def close(self) -> None:
        """See `Load`."""
        self._process.kill()
        self._process.wait()


class FakeLoad:
    """The rhythm of a fake card, which follows each pattern exactly: for `--dry-run`.

    The fake driver serves one process; so each gets a card of its own, all in the same rhythm.
    """

    gpu = "fake"
    uuid = "GPU-00000000-fake-0000-0000-000000000000"

    def __init__(self, truth: Path, seconds: float, folder: Path) -> None:
        self._folder = folder
        self._fakes: list[FakeNvml] = []
        self._rhythm = (1.0, 0.0, 0.0)
        self._loaded = self._one_more().loaded()
        self._loaded.__enter__()
        self._thread = threading.Thread(target=self._play, args=(truth, seconds), daemon=True)

    def environment(self) -> Mapping[str, str]:
        """See `Load`."""
        return self._one_more().environment()

    def go(self) -> None:
        """See `Load`."""
        self._thread.start()

    def is_over(self) -> bool:
        """See `Load`."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """See `Load`."""
        self._loaded.__exit__(None, None, None)

    def _one_more(self) -> FakeNvml:
        fake = FakeNvml(self._folder / f"nvml-{len(self._fakes)}")
        self._fakes.append(fake)
        self._set(*self._rhythm)
        return fake

    def _set(self, period_seconds: float, duty: float, phase_seconds: float) -> None:
        self._rhythm = (period_seconds, duty, phase_seconds)
        for fake in self._fakes:
            card = fake.control.gpu[0]
            card.period_seconds, card.duty, card.phase_seconds = self._rhythm

    def _play(self, output: Path, seconds: float) -> None:
        with output.open("w", encoding="ascii") as truths:
            for pattern in PATTERNS:
                period = pattern.period_seconds
                began_at = time.time()
                self._set(period, pattern.duty, began_at)
                turns = int(seconds / period)
                starts = [began_at + turn * period for turn in range(turns)]
                edges = [(start, start + pattern.duty * period) for start in starts]
                time.sleep(turns * period)
                truth = Truth(pattern, began_at, began_at + turns * period, edges)
                print(truth.to_json(), file=truths, flush=True)
