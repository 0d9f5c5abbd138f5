"""What truly happened on each stage, as intervals: joined, cut, written down, read again. Pure."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Span = tuple[float, float]
MICROSECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Shares:
    """How a stage spent a time; the three add up to one."""

    working: float
    waiting: float

    @property
    def idle(self) -> float:
        """Neither."""
        return max(1.0 - self.working - self.waiting, 0.0)


@dataclass(frozen=True, slots=True)
class StageTruth:
    """One stage in one scenario.

    Attributes:
        works: Between the events around each pass, epoch seconds, in order, apart.
        waits: Between the events around each receive, less what is work.
        doubt_seconds: How wide the clock anchor was, and how far GPU and host clock drifted.
    """

    scenario: str
    stage: int
    works: Sequence[Span]
    waits: Sequence[Span]
    passes: int = 0
    doubt_seconds: float = 0.0

    def shares(self, start: float, end: float) -> Shares:
        """Of [start, end]."""
        return Shares(
            covered(self.works, start, end) / (end - start),
            covered(self.waits, start, end) / (end - start),
        )

    def to_json(self) -> str:
        """One line; the edges as whole microseconds since the one before."""
        return json.dumps(
            {
                "type": "stage",
                "scenario": self.scenario,
                "stage": self.stage,
                "passes": self.passes,
                "doubt_seconds": self.doubt_seconds,
                "works": _packed(self.works),
                "waits": _packed(self.waits),
            },
            separators=(",", ":"),
        )


@dataclass(slots=True)
class Play:
    """When the parts of one scenario were played (epoch seconds), and what was seen beside.

    Attributes:
        phases: By name: idle, single, main; in the probe, what the stages did.
        polled: Readings of the polled gauge by GPU: (instant, share).
        clocks: Readings of the SM clock by GPU: (instant, hertz).
        tokens: Made in the main phase, and per second by a single stream.
        mapped: Whether the exporter found the same stages by their process titles; `None` not seen.
    """

    scenario: str
    stages: int
    phases: dict[str, Span] = field(default_factory=dict)
    polled: dict[int, list[Span]] = field(default_factory=dict)
    clocks: dict[int, list[Span]] = field(default_factory=dict)
    tokens: int = 0
    mapped: bool | None = None
    error: str | None = None

    def to_json(self) -> str:
        """One line."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({"type": "play", **values}, separators=(",", ":"))


def union(spans: Iterable[Span]) -> list[Span]:
    """The same time in order, without overlaps."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        elif end > start:
            joined.append((start, end))
    return joined


def without(spans: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """What of some time the others do not cover; both in order and apart."""
    left: list[Span] = []
    index = 0
    for start, end in spans:
        at = start
        while index < len(others) and others[index][1] <= at:
            index += 1
        following = index
        while following < len(others) and others[following][0] < end:
            if others[following][0] > at:
                left.append((at, others[following][0]))
            at = max(at, others[following][1])
            following += 1
        if at < end:
            left.append((at, end))
    return left


def covered(spans: Iterable[Span], start: float, end: float) -> float:
    """Seconds of [start, end] that the spans cover."""
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in spans)


def binned(spans: Sequence[Span], start: float, width: float, count: int) -> list[float]:
    """Share of each of `count` bins that the spans cover."""
    shares = [0.0] * count
    for a, b in spans:
        first = max(int((a - start) / width), 0)
        for index in range(first, min(int((b - start) / width) + 1, count)):
            left = start + index * width
            shares[index] += max(0.0, min(b, left + width) - max(a, left)) / width
    return [min(share, 1.0) for share in shares]


def _packed(spans: Sequence[Span]) -> list[int]:
    edges = [round(edge * MICROSECONDS) for span in spans for edge in span]
    return [edge - before for before, edge in zip([0, *edges], edges, strict=False)]


def _unpacked(steps: Iterable[int]) -> list[Span]:
    edges, at = [], 0
    for step in steps:
        at += step
        edges.append(at / MICROSECONDS)
    return list(zip(edges[::2], edges[1::2], strict=True))


def read_truths(path: Path) -> tuple[list[Play], dict[tuple[str, int], StageTruth]]:
    """All that a run wrote: its plays in order, and the stages by scenario and stage.

    A file cut short by a kill gives what lies before the cut.
    """
    plays: list[Play] = []
    stages: dict[tuple[str, int], StageTruth] = {}
    with gzip.open(path, "rt", encoding="ascii") as lines:
        try:
            for line in lines:
                values = json.loads(line)
                if values.pop("type") == "play":
                    plays.append(_play(values))
                else:
                    truth = _stage(values)
                    stages[truth.scenario, truth.stage] = truth
        except (EOFError, ValueError):
            pass
    return plays, stages


def _stage(values: Mapping[str, Any]) -> StageTruth:
    unpacked = {key: _unpacked(values[key]) for key in ("works", "waits")}
    return StageTruth(**{**values, **unpacked})


def _play(values: dict[str, Any]) -> Play:
    for key in ("polled", "clocks"):
        values[key] = {
            int(gpu): [tuple(each) for each in found] for gpu, found in values[key].items()
        }
    values["phases"] = {name: tuple(span) for name, span in values["phases"].items()}
    return Play(**values)
