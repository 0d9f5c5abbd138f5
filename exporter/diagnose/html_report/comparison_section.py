"""A comparison with a baseline → what its section of the page says. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exporter.comparison.cautions import cautions
from exporter.comparison.compared import Comparison
from exporter.comparison.run import printable
from exporter.comparison.table import Line, table
from exporter.comparison.wording import gives_more, headline, sentence, side_text


@dataclass(frozen=True, slots=True)
class ComparisonSection:
    """A comparison, ready to be put into a page.

    Attributes:
        tone: `healthy`, `fault` or `open`.
        sides: Baseline and candidate, each in a line.
        heads: What the columns are called.
        changed: Facts of the server that differ: name, baseline, candidate.
        share_facts: Whether a fact is known on both sides.
        one_sided: By the side that does not know them: names and values of facts.
    """

    tone: str
    headline: str
    sentence: str
    sides: tuple[str, str]
    heads: tuple[str, str]
    blocks: Sequence[Sequence[Line]]
    changed: Sequence[tuple[str, str, str]]
    share_facts: bool
    one_sided: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    cautions: Sequence[str]


def comparison_section(comparison: Comparison) -> ComparisonSection:
    """A comparison in the words and figures that the terminal shows."""
    baseline, candidate = comparison.baseline, comparison.candidate
    facts = comparison.changed_facts
    first, second = comparison.names
    return ComparisonSection(
        {True: "healthy", False: "fault", None: "open"}[gives_more(comparison)],
        headline(comparison),
        sentence(comparison),
        (side_text(baseline), side_text(candidate)),
        (first.removeprefix("the "), second.removeprefix("the ")),
        table(comparison),
        [
            (each.name, printable(each.baseline), printable(each.candidate))
            for each in facts
            if each.unknown is None
        ],
        bool(baseline.facts.keys() & candidate.facts.keys()),
        [
            (side, known)
            for side in ("baseline", "candidate")
            if (
                known := [
                    (each.name, printable(each.candidate if side == "baseline" else each.baseline))
                    for each in facts
                    if each.unknown == side
                ]
            )
        ],
        cautions(comparison),
    )
