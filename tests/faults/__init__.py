"""Faults of the world around the exporter: what it has to show, and what it shows.

A fault is provoked so and so often against a whole exporter process (GPUs of which only samples
matter: against the sampler). `make test` provokes a few of each, `make soak` all that an issue
names, and prints the table of docs/measurements.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.journal_lives import Counts

Figures = Mapping[str, object]


class Outcome(NamedTuple):
    """What has to be seen and what was, in the same words."""

    expected: Figures
    seen: Figures


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the table.

    Attributes:
        name: What happens.
        times: What is counted in `few` and `many`.
        provoke: Does it so often, in an empty folder of its own.
        few: How often in `make test`; 0 where a test of its own does it there.
        many: How often in `make soak`.
        why_not: Why it cannot be provoked on this machine; `None` if it can.
    """

    name: str
    times: str
    provoke: Callable[[Path, int], Outcome]
    few: int
    many: int
    why_not: str | None = None

    def __str__(self) -> str:
        return self.name


def beside(expected: Counts, seen: Counts, **others: tuple[object, object]) -> Outcome:
    """Counts side by side: how many there are, and how many of them are missing or too many."""
    counts = {
        "lines": expected["lines",],
        "lost": sum((expected - seen).values()),
        "doubled or invented": sum((seen - expected).values()),
    }
    return Outcome(
        {**counts, "lost": 0, "doubled or invented": 0, **{k: v[0] for k, v in others.items()}},
        {**counts, "lines": seen["lines",], **{k: v[1] for k, v in others.items()}},
    )
