"""What a GPU truly did: busy intervals known from its own events, and shares of any window of them.

Pure arithmetic, plus the file the load writes: one JSON object per pattern.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

RING_SECONDS = 0.2
"""Spacing of the utilization ring on an H200."""
_SAME_SECONDS = 20e-6
_FOUND_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class Pattern:
    """A rhythm: `duty` of each `period_seconds` a kernel is resident, of the kind that is named."""

    period_seconds: float
    duty: float
    kind: str

    @property
    def label(self) -> str:
        """How tables call it."""
        return f"{self.period_seconds:g} s, {self.duty:.0%} {self.kind}"


PATTERNS = (
    Pattern(0.04, 0.5, "matmul"),
    Pattern(0.1, 0.5, "graph"),
    Pattern(0.2, 0.5, "matmul"),
    Pattern(0.35, 0.32, "graph"),
    Pattern(0.35, 0.78, "matmul"),
    Pattern(0.5, 0.55, "graph"),
    Pattern(1.0, 0.56, "matmul"),
    Pattern(2.1, 0.58, "graph"),
)


@dataclass(frozen=True, slots=True)
class Truth:
    """What happened while one pattern ran; instants are epoch seconds."""

    pattern: Pattern
    began_at: float
    ended_at: float
    edges: Sequence[tuple[float, float]]
    """Start and end of each stretch in which a kernel was resident, in time order."""
    clock: dict[str, float] = field(default_factory=dict)
    """How well event time was tied to the wall clock."""

    def busy_share(self, start: float, end: float) -> float:
        """Share of [start, end] in which a kernel was resident."""
        busy = sum(max(0.0, min(stop, end) - max(begin, start)) for begin, stop in self.edges)
        return busy / (end - start)

    def to_json(self) -> str:
        """One line of the file."""
        return json.dumps(asdict(self))


def read_truths(path: Path) -> list[Truth]:
    """All patterns that were finished."""
    truths = []
    with path.open(encoding="ascii") as lines:
        for line in lines:
            fields = json.loads(line)
            edges = tuple((start, end) for start, end in fields.pop("edges"))
            truths.append(Truth(Pattern(**fields.pop("pattern")), edges=edges, **fields))
    return truths


def covered_window(
    ring_ends: Iterable[float], newest_before: float, newest_after: float, covered_seconds: float
) -> tuple[float, float, bool]:
    """The window an integrating counter covered between two scrapes, as exactly as can be known.

    Args:
        ring_ends: Timestamps of the driver's ring, read independently.
        newest_before: Newest sample of any signal at the first scrape: at most a few
            milliseconds off the instant when the ring was drained.
        newest_after: The same at the second scrape.
        covered_seconds: What the counter of covered time grew by.

    Returns:
        Start, end, and whether both are timestamps of the ring; else the window is centered in
        what is possible, half a spacing off at most.
    """
    ends = list(ring_ends)

    def near(instant: float) -> list[float]:
        return [end for end in ends if instant - 2.5 * RING_SECONDS < end < instant + 0.05]

    pairs = [(start, end) for start in near(newest_before) for end in near(newest_after)]
    if pairs:
        misfits = {pair: abs(pair[1] - pair[0] - covered_seconds) for pair in pairs}
        least = min(misfits.values())
        if least < _FOUND_SECONDS:
            # A ring that ticks evenly fits more than once; what was drained is the newest then.
            fitting = [pair for pair in pairs if misfits[pair] <= least + _SAME_SECONDS]
            start, end = min(fitting, key=lambda pair: abs(pair[0] - newest_before + 1e-3))
            return start, end, True
    start = newest_before - RING_SECONDS / 2
    return start, start + covered_seconds, False
