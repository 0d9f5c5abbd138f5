"""Rows of the judgment of a run, and their tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.nccl_truth import Shares

BOUNDS = {"gpm": 0.05, "power": 0.08}
"""Most that a share may be off where it is claimed by this method."""


@dataclass(frozen=True, slots=True)
class Row:
    """One stage of one scenario by one way."""

    scenario: str
    stage: int
    way: str
    true: Shares
    said: Shares
    methods: dict[str, float]

    @property
    def worst(self) -> float:
        """The largest error of the three shares."""
        working = self.said.working - self.true.working
        waiting = self.said.waiting - self.true.waiting
        return max(abs(working), abs(waiting), abs(working + waiting))

    @property
    def claimed(self) -> bool:
        """Whether it tells waiting from working: by residency it is an upper bound."""
        return self.methods.get("residency", 0.0) <= 0.1

    @property
    def within(self) -> bool:
        """Whether a claim is within its bound, or an upper bound is one."""
        if not self.claimed:
            return self.said.working >= self.true.working - BOUNDS["gpm"]
        method = max(self.methods, key=lambda name: self.methods[name])
        return self.worst <= BOUNDS.get(method, BOUNDS["power"])


@dataclass(frozen=True, slots=True)
class Verdicted:
    """The verdict on one scenario by one way."""

    scenario: str
    way: str
    verdict: str
    confidence: float
    also: tuple[str, ...]
    right: str
    """yes; not told; WRONG."""
    occupancy: float | None
    measured: bool
    """Else the occupancy is an upper bound."""
    true_occupancy: float
    effective: float | None
    true_effective: float | None


def tell_rows(rows: Sequence[Row], tell: Callable[..., None]) -> None:
    """Prints a line for each stage of a scenario by each way."""
    tell("Shares said and true, by what is looked at; `levels`: those of the first table are given")
    tell()
    tell(
        "| scenario | stage | by | working | true | waiting | true | worst error | methods | within |"
    )
    tell("|" + "---|" * 10)
    for row in rows:
        methods = ", ".join(f"{name} {share:.0%}" for name, share in row.methods.items())
        within = "yes" if row.within else "NO"
        cells = (
            *(f"{value:.3f}" for value in (row.said.working, row.true.working)),
            *(f"{value:.3f}" for value in (row.said.waiting, row.true.waiting)),
            f"{row.worst:.3f}" if row.claimed else "upper bound",
            methods,
            within,
        )
        tell(f"| {row.scenario} | {row.stage} | {row.way} | " + " | ".join(cells) + " |")
    tell()


def tell_verdicts(verdicts: Sequence[Verdicted], tell: Callable[..., None]) -> None:
    """Prints a line for each scenario by each way."""
    tell("Verdicts of the recordings")
    tell()
    tell("| scenario | by | verdict | sure | also | right | occupancy | true | effective | true |")
    tell("|" + "---|" * 10)
    for each in verdicts:
        bound = "" if each.measured else "≤ "
        occupancy = "-" if each.occupancy is None else f"{bound}{each.occupancy:.3f}"
        slots = ("-" if x is None else f"{x:.2f}" for x in (each.effective, each.true_effective))
        cells = (
            each.verdict,
            f"{each.confidence:.2f}",
            ", ".join(each.also) or "-",
            each.right,
            occupancy,
            f"{each.true_occupancy:.3f}",
            *slots,
        )
        tell(f"| {each.scenario} | {each.way} | " + " | ".join(cells) + " |")
    tell()
