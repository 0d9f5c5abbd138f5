"""What a load measured: tokens, failures, and the latencies of requests, in bounded memory."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from exporter.load.failures import FailureKind
from exporter.load.streaming import NewTokens, RequestTiming

MOST_GAPS = 1 << 20


@dataclass(frozen=True, slots=True)
class Percentiles:
    """How long something took, in seconds, over `count` cases."""

    count: int
    mean_seconds: float
    p50_seconds: float
    p90_seconds: float
    p99_seconds: float
    most_seconds: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies in a window; `None` where nothing of the kind ended in it.

    Attributes:
        time_to_first_token: From sending to the first token: connection, queue, prefill.
        inter_token: Between two tokens of a request; of tokens that came together, each has its
            part of the time since those before.
        end_to_end: From sending to the end of the answer.
    """

    time_to_first_token: Percentiles | None
    inter_token: Percentiles | None
    end_to_end: Percentiles | None


class Measurements:
    """Takes what requests report; instants are of one clock, in any order.

    Attributes:
        output_tokens: All tokens so far, those of failed and unfinished requests among them.
        requests: Each request that was answered to its end.
        failures: When and how each other one failed.
        errors: The same, by kind.
    """

    def __init__(self) -> None:
        self.output_tokens = 0
        self.requests: list[RequestTiming] = []
        self.failures: list[tuple[float, FailureKind]] = []
        self.errors: Counter[FailureKind] = Counter()
        self._first_tokens: list[tuple[float, float]] = []
        self._gaps = _Gaps()

    def add_tokens(self, new: NewTokens) -> None:
        """Takes tokens of a request that came together."""
        self.output_tokens += new.count
        if new.first:
            self._first_tokens.append((new.at, new.waited_seconds))
        else:
            self._gaps.add(new.at, new.waited_seconds / new.count, new.count)

    def add_failure(self, at: float, kind: FailureKind) -> None:
        """Takes a request that came to nothing."""
        self.failures.append((at, kind))
        self.errors[kind] += 1

    def errors_between(self, start: float, end: float) -> Counter[FailureKind]:
        """Failures in a window, by kind."""
        return Counter(kind for at, kind in self.failures if start <= at <= end)

    def latencies(self, start: float, end: float) -> Latencies:
        """Latencies of what ended in a window: a wait for a first token, a gap, an answer."""
        first = [seconds for at, seconds in self._first_tokens if start <= at <= end]
        whole = [r.ended_at - r.started_at for r in self.requests if start <= r.ended_at <= end]
        return Latencies(
            _percentiles([(seconds, 1) for seconds in first]),
            _percentiles(self._gaps.between(start, end)),
            _percentiles([(seconds, 1) for seconds in whole]),
        )


class _Gaps:
    """Times between tokens: when there are too many, every second one is forgotten, then on."""

    def __init__(self) -> None:
        self._at = array("d")
        self._seconds = array("d")
        self._tokens = array("l")
        self._every = 1
        self._passed = 0

    def add(self, at: float, seconds: float, tokens: int) -> None:
        self._passed += 1
        if self._passed < self._every:
            return
        self._passed = 0
        self._at.append(at)
        self._seconds.append(seconds)
        self._tokens.append(tokens)
        if len(self._at) >= MOST_GAPS:
            self._at, self._seconds = self._at[::2], self._seconds[::2]
            self._tokens = self._tokens[::2]
            self._every *= 2

    def between(self, start: float, end: float) -> list[tuple[float, int]]:
        columns = zip(self._at, self._seconds, self._tokens, strict=True)
        return [(seconds, tokens) for at, seconds, tokens in columns if start <= at <= end]


def _percentiles(weighted: list[tuple[float, int]]) -> Percentiles | None:
    if not weighted:
        return None
    weighted.sort()
    reached, cumulated = 0, []
    for _, weight in weighted:
        reached += weight
        cumulated.append(reached)

    def at(ratio: float) -> float:
        return weighted[bisect_left(cumulated, ratio * reached)][0]

    mean = sum(seconds * weight for seconds, weight in weighted) / reached
    return Percentiles(reached, mean, at(0.5), at(0.9), at(0.99), weighted[-1][0])
