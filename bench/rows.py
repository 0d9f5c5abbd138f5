"""One row of the comparison: a figure of ours, a peer's of the same run, their ratio and its bar."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import bytecode

HEADER = "| what | this exporter | against | ratio | bar |\n|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Row:
    """`ratio`: ours over the peer's; `None` where there is no peer, or it gave nothing.

    Attributes:
        bar: What the ratio may be at most; `None`: it is told only.
        bar_text: How the bar reads where it is no ratio.
        met: Whether a bar that is no ratio is met.
    """

    what: str
    ours: str
    peer: str
    ratio: float | None = None
    bar: float | None = None
    bar_text: str = ""
    met: bool | None = None

    def line(self) -> str:
        """Of the table; a bar that is not met is set in bold."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}x"
        bar = self.bar_text if self.bar is None else f"{self.bar:g}x"
        met = self.met
        if self.bar is not None and self.ratio is not None:
            met = self.ratio <= self.bar
        verdict = "" if met is None else ", met" if met else ", **missed**"
        return f"| {self.what} | {self.ours} | {self.peer} | {ratio} | {bar}{verdict} |"


Measure = Callable[[bool], Sequence[Row]]
"""Measures for the rows of one subject, `True`: briefly, to see that it works."""


def run_alone(measure: Measure, about: str | None) -> int:
    """A script of its own for one subject; returns its exit code."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short: shows only that it works")
    given = parser.parse_args()
    bytecode.write()
    rows = measure(given.quick)
    print("\n" + HEADER)
    for row in rows:
        print(row.line())
    return 0
