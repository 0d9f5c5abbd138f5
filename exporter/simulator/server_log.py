"""What the simulated server's processes print, and when: happenings → log entries in time order."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

from exporter.simulator import log_text
from exporter.simulator.noise import Noise
from exporter.simulator.pipeline import (
    DecodeResult,
    Finished,
    Happening,
    PrefillResult,
    Retraction,
)
from exporter.simulator.processes import MAIN, SCHEDULERS, Process
from exporter.simulator.scenarios import STAGES, Scenario

_PRINT_LAG_SECONDS = 0.00015
"""From one stage's print of a batch to the next one's."""
_WARM_UP_DECODES = 8


@dataclass(frozen=True, slots=True, order=True)
class LogEntry:
    """One line of one process at one instant."""

    at: float
    number: int
    """Keeps the order of what is printed at the same instant."""
    process: Process
    message: str


class ServerLog:
    """Keeps SGLang's counters and holds each line until its time has come."""

    def __init__(
        self,
        scenario: Scenario,
        rng: random.Random,
        noise: Noise | None,
        started_at: float,
    ) -> None:
        self._scenario = scenario
        self._silent = scenario.log_level != "info"
        self._noise = None if self._silent else noise
        self._rng = rng
        self._held: list[LogEntry] = []
        self._numbers = count()
        self._decodes = _WARM_UP_DECODES
        self._generated = 0
        self._decode_printed_at = [started_at] * STAGES
        self._prefill_printed_at = [started_at - 3.0] * STAGES
        self._timer_read = [(started_at - 3.0, 0.0)] * STAGES
        self._start(started_at)

    def take(self, happenings: Iterable[Happening], to: float) -> list[LogEntry]:
        """The entries due before `to`, in time order, those of these happenings among them."""
        for happening in happenings:
            self._print(happening)
        if self._noise is not None:
            for at, process, message in self._noise.until(to):
                self._add(at, process, message)
        due = []
        while self._held and self._held[0].at < to:
            due.append(heapq.heappop(self._held))
        return due

    def _add(self, at: float, process: Process, message: str) -> None:
        heapq.heappush(self._held, LogEntry(at, next(self._numbers), process, message))

    def _start(self, ready_at: float) -> None:
        """Everything a start prints, so that `ready_at` is when the server takes requests."""
        before = ready_at - 48.0
        overlap = "Pipeline parallelism is incompatible with overlap schedule."
        self._add(before, MAIN, log_text.stamped(before, overlap))
        if self._silent:
            return
        self._add(
            before + 2.0, MAIN, log_text.stamped(before + 2.0, log_text.server_args(self._scenario))
        )
        for rank, scheduler in enumerate(SCHEDULERS):
            # Until it names itself, a scheduler's entries carry the command line it was spawned with.
            spawned = Process(scheduler.pid, log_text.SPAWN_TITLE)
            self._add(ready_at - 43.0 + 0.01 * rank, spawned, "  warnings.warn(")
            for seconds, message in log_text.stage_startup(rank, self._scenario):
                at = ready_at - seconds + 0.01 * rank
                self._add(at, scheduler, log_text.stamped(at, message, rank))
        self._warm_up(ready_at)

    def _warm_up(self, ready_at: float) -> None:
        address = f"http://127.0.0.1:{log_text.PORT} (Press CTRL+C to quit)"
        for seconds, message in (
            (2.5, "INFO:     Started server process [41900]"),
            (2.4, "INFO:     Waiting for application startup."),
            (2.4, "INFO:     Application startup complete."),
            (2.3, f"INFO:     Uvicorn running on {address}"),
            (1.5, log_text.access(54828, "GET /model_info")),
            (0.2, log_text.access(54844, "POST /generate")),
            (0.0, "The server is fired up and ready to roll!"),
        ):
            self._add(ready_at - seconds, MAIN, log_text.stamped(ready_at - seconds, message))
        self._print(PrefillResult(ready_at - 0.6, 1, 6, 0, 0, 0, 6, (0.0,) * STAGES))

    def _print(self, happening: Happening) -> None:
        if isinstance(happening, Retraction):
            self._on_all_stages(happening.at, lambda _, __: log_text.retraction(happening))
        elif self._silent:
            return
        elif isinstance(happening, DecodeResult):
            self._generated += happening.running_reqs
            self._decodes += 1
            if self._decodes % self._scenario.decode_log_interval == 0:
                self._print_decode(happening)
        elif isinstance(happening, PrefillResult):
            self._print_prefill(happening)
        else:
            self._print_answers(happening)

    def _on_all_stages(self, at: float, message: Callable[[int, float], str]) -> None:
        """Every stage runs its own scheduler over the same requests, so every stage prints."""
        for rank, scheduler in enumerate(SCHEDULERS):
            printed_at = at + _PRINT_LAG_SECONDS * (rank + 1 + 0.2 * self._rng.random())
            text = message(rank, printed_at)
            self._add(printed_at, scheduler, log_text.stamped(printed_at, text, rank))

    def _print_decode(self, result: DecodeResult) -> None:
        generated, self._generated = self._generated, 0

        def message(rank: int, at: float) -> str:
            gap, self._decode_printed_at[rank] = at - self._decode_printed_at[rank], at
            text = log_text.decode_batch(
                result,
                self._scenario.kv_tokens,
                graph=self._scenario.graph,
                throughput=generated / gap if gap > 0 else 0.0,
            )
            return text + self._timer(rank, result)

        self._on_all_stages(result.at, message)

    def _print_prefill(self, result: PrefillResult) -> None:
        def message(rank: int, at: float) -> str:
            gap, self._prefill_printed_at[rank] = at - self._prefill_printed_at[rank], at
            text = log_text.prefill_batch(
                result,
                self._scenario.kv_tokens,
                graph=False,
                throughput=result.new_tokens / gap if gap > 0 else 0.0,
            )
            return text + self._timer(rank, result)

        self._on_all_stages(result.at, message)

    def _timer(self, rank: int, result: DecodeResult | PrefillResult) -> str:
        if not self._scenario.device_timer:
            return ""
        (read_at, before), forward = self._timer_read[rank], result.forward_seconds[rank]
        self._timer_read[rank] = (result.at, forward)
        share = (forward - before) / (result.at - read_at) if result.at > read_at else 0.0
        return log_text.occupancy_suffix(share)

    def _print_answers(self, finished: Finished) -> None:
        at = finished.at + 0.002
        for _ in range(finished.requests):
            port = self._rng.randrange(32_768, 61_000)
            line = log_text.access(port, "POST /v1/chat/completions")
            self._add(at, MAIN, log_text.stamped(at, line))
