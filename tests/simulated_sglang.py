"""A simulated SGLang of eight stages behind HTTP: what requests get is what its pipeline makes.

Requests that come together wait in its queue, take slots up to the cap and keep them for life; the
cap can be set live; log and cards show what follows from it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter.simulator.clients import Request
from exporter.simulator.log_writers import TextWriter
from exporter.simulator.processes import write_proc
from exporter.simulator.scenarios import STAGES, Scenario
from exporter.simulator.simulation import Simulation
from tests.streaming_server import NATIVE, StreamingServer

STEP_SECONDS = 0.05
GATHERED_SECONDS = 0.25
"""Requests that come within this reach the queue at one instant: as a herd."""
ABORT_SECONDS = 2.0
"""Until it gives up a request whose client has hung up, as SGLang does."""


class SimulatedSglang(StreamingServer):
    """One server with its log, its cards and its processes.

    Attributes:
        log_file: Its text log.
        proc_root: Stands for /proc.
        simulation: What goes on inside; its driver has the cards.
    """

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        most = scenario.max_running_requests
        cap = {"value": scenario.pp_max_micro_batch_size, "most": most, "stages": STAGES}
        super().__init__(cap=cap)
        self.log_file = folder / "sglang.log"
        self.proc_root = folder / "proc"
        write_proc(self.proc_root)
        self.simulation = Simulation(
            replace(scenario, loads=()), started_at=time.time(), forged=False
        )
        self._pipeline = self.simulation._pipeline
        self._pipeline._clients.append(self)
        self._writer = TextWriter(self.log_file)
        self._pending: list[tuple[float, Request]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> SimulatedSglang:
        await super().__aenter__()
        self._keep(asyncio.create_task(self._live()))
        return self

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await super().stop()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _live(self) -> None:
        while True:
            self._pipeline._scenario = replace(
                self._pipeline._scenario, pp_max_micro_batch_size=self.cap.value
            )
            await self._writer.write(self.simulation.advance(time.time()))
            async with self.changed:
                self.changed.notify_all()
            await asyncio.sleep(STEP_SECONDS)

    # --- what the simulated scheduler asks of its clients ---------------------------------------

    def released(self, at: float) -> list[Request]:
        if not self._pending or at < self._pending[0][0] + GATHERED_SECONDS:
            return []
        requests = [request for _, request in self._pending]
        self._pending.clear()
        return requests

    def next_arrival_at(self) -> float | None:
        return self._pending[0][0] + GATHERED_SECONDS if self._pending else None

    def finished(self, request: Request, at: float) -> None:
        """Its stream sees that by itself."""

    # --- one request -----------------------------------------------------------------------------

    async def _events(self, path: str, tokens: int) -> AsyncIterator[dict[str, Any]]:
        request = Request(len(self.prompts[-1]), tokens, self)
        self._pending.append((time.time(), request))
        sent = 0
        try:
            while sent < tokens:
                async with self.changed:
                    while request.generated_tokens <= sent:
                        await self.changed.wait()
                new, sent = request.generated_tokens - sent, request.generated_tokens
                self.tokens_sent += new
                yield self._event(path, new, sent, tokens)
        finally:
            if sent < tokens:
                self._keep(asyncio.create_task(self._abort(request)))
        if path != NATIVE:
            yield {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": sent}}

    async def _abort(self, request: Request) -> None:
        await asyncio.sleep(ABORT_SECONDS)
        self._pending = [each for each in self._pending if each[1] is not request]
        for slot in self._pipeline._slots:
            if request in slot.running:
                slot.running.remove(request)
                self._pipeline.used_tokens -= request.held_tokens
        if request in self._pipeline._waiting:
            self._pipeline._waiting.remove(request)
