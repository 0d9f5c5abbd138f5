"""Mixes of waiting, working and idleness, and what truly happened while they ran. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

IDLE_SECONDS = 5.0
"""Before the first mix: an idle card."""


@dataclass(frozen=True, slots=True)
class Mix:
    """A rhythm: in each period a spin of `waiting`, work of `working`, then idleness."""

    kind: str
    """What works: matmul (compute bound), copy (memory bound), few_sms (compute on 40 SMs)."""
    period_seconds: float
    waiting: float
    working: float
    spin_blocks: int

    @property
    def label(self) -> str:
        """How tables call it."""
        return f"{self.kind}, {self.period_seconds:g} s, spin on {self.spin_blocks} SMs"

    def cycles(self, rng: random.Random, seconds: float) -> Iterator[tuple[float, float, float]]:
        """(waiting, working, whole) seconds of each period; a period varies by 20 %."""
        left = seconds
        while left > 0.0:
            period = self.period_seconds * rng.uniform(0.8, 1.2)
            yield self.waiting * period, self.working * period, period
            left -= period


MIX_SETS: dict[str, tuple[Mix, ...]] = {
    "first": (
        Mix("matmul", 0.35, 0.30, 0.50, 24),
        Mix("copy", 0.30, 0.40, 0.40, 16),
        Mix("few_sms", 0.50, 0.35, 0.45, 16),
        Mix("copy", 0.60, 0.60, 0.25, 24),
        Mix("matmul", 1.00, 0.25, 0.15, 20),
        Mix("few_sms", 0.40, 0.10, 0.70, 24),
    ),
    "second": (
        Mix("copy", 0.45, 0.30, 0.60, 20),
        Mix("matmul", 0.60, 0.50, 0.25, 16),
        Mix("few_sms", 0.80, 0.50, 0.30, 20),
        Mix("copy", 0.80, 0.15, 0.30, 24),
        Mix("matmul", 0.45, 0.20, 0.65, 24),
        Mix("few_sms", 0.30, 0.25, 0.55, 16),
    ),
}
"""The estimator was mended with a recording of the first set in hand, and not with the second."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What happened while one mix ran; instants are epoch seconds."""

    mix: Mix
    began_at: float
    ended_at: float
    waits: list[tuple[float, float]]
    works: list[tuple[float, float]]

    def shares(self, start: float, end: float) -> tuple[float, float]:
        """(working, waiting) share of [start, end]."""
        return overlap(self.works, start, end), overlap(self.waits, start, end)

    def to_json(self) -> str:
        """One line of the file."""
        return json.dumps(asdict(self))


def overlap(stretches: list[tuple[float, float]], start: float, end: float) -> float:
    """Share of [start, end] that the stretches cover."""
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in stretches) / (end - start)


def read_truths(path: Path) -> list[Truth]:
    """All mixes that were finished."""
    truths = []
    for line in path.read_text(encoding="ascii").split("\n"):
        if line:
            fields = json.loads(line)
            waits, works = (
                [(start, end) for start, end in fields.pop(key)] for key in ("waits", "works")
            )
            truths.append(Truth(Mix(**fields.pop("mix")), waits=waits, works=works, **fields))
    return truths
