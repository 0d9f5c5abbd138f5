"""The stages' processes: started, told, listened to, and killed when they hang."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ANSWER = b"@"
READY_SECONDS = 90.0
_LONGEST_LINE = 1 << 20
_TAIL = 1500
_ENVIRONMENT = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the driver's order
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",  # no stream waits behind another's kernel
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # NVLink multicast can put GPUs that others share out of service.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "OMP_NUM_THREADS": "1",
}

OnLine = Callable[[int, int, float, str], None]
"""Told of a line: stage, PID, when it was read, text."""


class CrewError(Exception):
    """A stage ended, said it failed, or did not answer in time."""


class Crew:
    """All stages of one pipeline.

    Attributes:
        pids: By stage.
        name: Of the device, as the first stage says.
    """

    def __init__(self, stages: int, device: str, folder: Path, on_line: OnLine) -> None:
        self.pids: list[int] = []
        self.name = ""
        self._stages, self._device, self._folder = stages, device, folder
        self._on_line = on_line
        self._processes: list[asyncio.subprocess.Process] = []
        self._answers: list[asyncio.Queue[dict[str, Any]]] = []
        self._listeners: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts them and waits until they have met.

        Raises:
            CrewError: They did not.
        """
        (self._folder / "meeting").unlink(missing_ok=True)
        for stage in range(self._stages):
            with (self._folder / f"stage{stage}.stderr").open("ab") as said:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "bench.nccl_stage", "--rank", str(stage)),
                    *("--stages", str(self._stages), "--device", self._device),
                    *("--folder", str(self._folder)),
                    cwd=ROOT,
                    env={**os.environ, **_ENVIRONMENT},
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=said,
                    limit=_LONGEST_LINE,
                    start_new_session=True,
                )
            self._processes.append(process)
            self.pids.append(process.pid)
            self._answers.append(asyncio.Queue())
            self._listeners.append(asyncio.create_task(self._listen(stage, process)))
        ready = await self._collect(READY_SECONDS)
        self.name = str(ready[0]["ready"])

    async def tell(self, timeout_seconds: float, **what: Any) -> list[dict[str, Any]]:
        """Tells all stages the same and waits for their answers, by stage.

        Raises:
            CrewError: One failed or did not answer in time.
        """
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(what).encode() + b"\n")
        return await self._collect(timeout_seconds)

    async def close(self) -> None:
        """Kills them; what they hold of the GPU is freed by the driver."""
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        await asyncio.gather(*(process.wait() for process in self._processes))
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)

    def last_words(self) -> str:
        """The end of what the stages said on stderr."""
        found = []
        for path in sorted(self._folder.glob("stage*.stderr")):
            said = path.read_text(errors="replace")[-_TAIL:].strip()
            if said:
                found.append(f"--- {path.name}\n{said}")
        return "\n".join(found)

    async def _collect(self, timeout_seconds: float) -> list[dict[str, Any]]:
        answers = []
        until = time.monotonic() + timeout_seconds
        for stage, queue in enumerate(self._answers):
            left = until - time.monotonic()
            try:
                answer: Mapping[str, Any] = await asyncio.wait_for(queue.get(), max(left, 0.1))
            except TimeoutError:
                raise CrewError(
                    f"stage {stage} did not answer in {timeout_seconds:.0f} s"
                ) from None
            if "error" in answer:
                raise CrewError(f"stage {stage}: {answer['error']}")
            answers.append(dict(answer))
        return answers

    async def _listen(self, stage: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            at = time.time()
            if line.startswith(ANSWER):
                self._answers[stage].put_nowait(json.loads(line[1:]))
            else:
                text = line.decode("utf-8", "replace").rstrip("\n")
                self._on_line(stage, process.pid, at, text)
        self._answers[stage].put_nowait({"error": f"ended with {await process.wait()}"})
