"""What load is asked for, checked before the first request leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from exporter.load.failures import LoadError

MOST_CONCURRENCY = 4096
MOST_TOKENS = 1 << 18
MOST_REQUESTS = 100_000
"""Requests of one load, failed ones and warm-up among them."""
MOST_SECONDS = 24 * 3600.0
MOST_RATE = 10_000.0


class PlanError(LoadError):
    """A load that cannot be driven as asked for; the message names value and expectation."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """A closed loop of `concurrency` streaming requests, each of the same size.

    The loop ends after `duration_seconds` or `requests`, whichever comes first; one of them is
    needed. The warm-up before it counts for neither.

    Attributes:
        requests: Answers since the end of the warm-up; failed requests are made up for by others.
        rate_per_second: Open loop: requests arrive at random at this mean rate, and `concurrency` is
            only the most that are under way. `None`: closed loop.
        request_seconds: How long one request may take, connecting and queueing included.
        seed: Same seed, same work: lengths, arrivals and all of a prompt but its first tokens.

    Raises:
        PlanError: A value is out of its bounds.
    """

    concurrency: int = 32
    prompt_tokens: int = 512
    output_tokens: int = 1024
    warmup_seconds: float = 30.0
    duration_seconds: float | None = 60.0
    requests: int | None = None
    rate_per_second: float | None = None
    request_seconds: float = 1800.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check("concurrency", self.concurrency, 1, MOST_CONCURRENCY)
        _check("prompt tokens", self.prompt_tokens, 1, MOST_TOKENS)
        _check("output tokens", self.output_tokens, 1, MOST_TOKENS)
        _check("warm-up seconds", self.warmup_seconds, 0.0, MOST_SECONDS)
        _check("seconds of a request", self.request_seconds, 0.001, MOST_SECONDS)
        if self.duration_seconds is None and self.requests is None:
            raise PlanError(
                "cannot drive a load without end: give a duration or a number of requests"
            )
        if self.duration_seconds is not None:
            _check("duration in seconds", self.duration_seconds, 0.001, MOST_SECONDS)
        if self.requests is not None:
            # With fewer, the asked-for number would never be under way at once.
            _check("number of requests", self.requests, self.concurrency, MOST_REQUESTS)
        if self.rate_per_second is not None:
            _check("requests per second", self.rate_per_second, 0.001, MOST_RATE)

    def at_concurrency(self, concurrency: int) -> LoadPlan:
        """The same load at another concurrency, with at least as many requests as that."""
        requests = None if self.requests is None else max(self.requests, concurrency)
        return replace(self, concurrency=concurrency, requests=requests)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise PlanError(f"cannot drive this load: {name}: {value} is not from {least} to {most}")
