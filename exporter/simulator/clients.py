"""The clients of the simulated server: when which request reaches its queue."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from exporter.simulator.scenarios import ClosedLoop, Load, Waves


@dataclass(slots=True, eq=False)
class Request:
    """One request on its way through the server."""

    prompt_tokens: int
    output_tokens: int
    client: Client
    held_tokens: int = 0
    """In the KV pool: computed prompt, then output. A retraction gives all back."""
    generated_tokens: int = 0

    @property
    def remaining_tokens(self) -> int:
        """Output tokens still to come."""
        return self.output_tokens - self.generated_tokens


class Client(Protocol):
    """One load generator."""

    def released(self, at: float) -> list[Request]:
        """The requests that reach the queue before the slot whose turn is now."""

    def next_arrival_at(self) -> float | None:
        """When something will be released next if nothing finishes; `None`: never."""

    def finished(self, request: Request, at: float) -> None:
        """Takes the answer to one of its requests."""


@dataclass(slots=True)
class ClosedLoopClient:
    """Keeps `concurrency` requests under way, one after the other each."""

    load: ClosedLoop
    rng: random.Random
    started_at: float
    _arrivals: list[tuple[float, int, Request]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        for _ in range(self.load.concurrency):
            self._send(self.started_at)

    def released(self, at: float) -> list[Request]:
        """See `Client`."""
        requests = []
        while self._arrivals and self._arrivals[0][0] <= at:
            requests.append(heapq.heappop(self._arrivals)[2])
        return requests

    def next_arrival_at(self) -> float | None:
        """See `Client`."""
        return self._arrivals[0][0] if self._arrivals else None

    def finished(self, request: Request, at: float) -> None:
        """See `Client`."""
        self._send(at + self.load.think_seconds * self.rng.uniform(0.5, 1.5))

    def _send(self, at: float) -> None:
        request = Request(
            self._length(self.load.prompt_tokens), self._length(self.load.output_tokens), self
        )
        heapq.heappush(self._arrivals, (at, next(self._numbers), request))

    def _length(self, mean: int) -> int:
        spread = self.load.spread_ratio
        return max(1, round(mean * self.rng.uniform(1.0 - spread, 1.0 + spread)))


@dataclass(slots=True)
class WavesClient:
    """Sends a burst in groups, waits until it is answered, pauses, sends the next."""

    load: Waves
    next_at: float
    _next_group: int = 0
    _unanswered: int = 0

    def released(self, at: float) -> list[Request]:
        """See `Client`."""
        if at < self.next_at or self._next_group >= len(self.load.groups):
            return []
        size = self.load.groups[self._next_group]
        self._next_group += 1
        self._unanswered += size
        return [
            Request(self.load.prompt_tokens, self.load.output_tokens, self) for _ in range(size)
        ]

    def next_arrival_at(self) -> float | None:
        """See `Client`."""
        return self.next_at if self._next_group < len(self.load.groups) else None

    def finished(self, request: Request, at: float) -> None:
        """See `Client`."""
        self._unanswered -= 1
        if self._unanswered == 0 and self._next_group >= len(self.load.groups):
            self._next_group = 0
            self.next_at = at + self.load.pause_seconds


def client_for(load: Load, rng: random.Random, started_at: float) -> Client:
    """The load generator that a scenario's load asks for."""
    if isinstance(load, Waves):
        return WavesClient(load, started_at)
    return ClosedLoopClient(load, rng, started_at)
