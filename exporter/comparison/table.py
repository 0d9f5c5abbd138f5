"""A comparison → the table of its figures, every cell as text. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.comparison.compared import Comparison, Quantity
from exporter.comparison.points import Means
from exporter.comparison.wording import times

_COUNTED = {Means.LOAD: "by the load", Means.LOG: "by the log"}


@dataclass(frozen=True, slots=True)
class _Row:
    label: str
    unit: str
    digits: int = 1
    factor: float = 1.0


_TABLE: tuple[dict[str, _Row], ...] = (
    {
        "output_tokens_per_second": _Row("output", "tokens/s"),
        "stream_tokens_per_second": _Row("of a stream", "tokens/s"),
        "single_stream_tokens_per_second": _Row("of a single stream", "tokens/s"),
        "batching_gain_ratio": _Row("gain of batching", "times one stream"),
        "scaling_ratio": _Row("scaling F", "of P single streams", 2),
    },
    {
        "streams": _Row("streams", "", 0),
        "requests_per_second": _Row("arrivals", "requests/s", 2),
        "prompt_tokens": _Row("prompt", "tokens", 0),
        "max_tokens": _Row("answer", "tokens", 0),
    },
    {
        "time_to_first_token_p50_seconds": _Row("first token, p50", "s", 3),
        "time_to_first_token_p99_seconds": _Row("first token, p99", "s", 3),
        "inter_token_p50_seconds": _Row("next token, p50", "ms", 1, 1000.0),
        "inter_token_p99_seconds": _Row("next token, p99", "ms", 1, 1000.0),
        "end_to_end_p50_seconds": _Row("whole answer, p50", "s", 2),
        "end_to_end_p99_seconds": _Row("whole answer, p99", "s", 2),
    },
    {
        "occupancy_ratio": _Row("stages work", "% of the time", 0, 100.0),
        "occupancy_at_most_ratio": _Row("stages work at most", "% of the time", 0, 100.0),
        "bubble_ratio": _Row("bubbles", "% of the time", 0, 100.0),
        "effective_microbatches": _Row("micro-batches in use", ""),
        "stage_skew_ratio": _Row("skew of the stages", "% of the time", 0, 100.0),
    },
    {
        "gpus": _Row("GPUs", "", 0),
        "power_watts": _Row("power of all", "W", 0),
        "energy_joules_per_token": _Row("energy of a token", "J", 2),
    },
)
"""What is shown, in blocks, by the quantity's name."""


@dataclass(frozen=True, slots=True)
class Line:
    """A figure in the table.

    Attributes:
        baseline: `?`: not known; `-`: the side has no such figure. So is `candidate`.
        change: As a ratio (`1.20x`), of shares the difference; empty where that says nothing.
        unit: May be empty.
    """

    label: str
    baseline: str
    candidate: str
    change: str
    unit: str


def table(comparison: Comparison) -> list[list[Line]]:
    """What is known of either side, in blocks that belong together."""
    blocks = [
        [
            _line(row, quantity, _unit(comparison, name, row))
            for name, row in block.items()
            if _is_shown(name, quantity := comparison.quantities[name])
        ]
        for block in _TABLE
    ]
    return [block for block in blocks if block]


def _is_shown(name: str, quantity: Quantity) -> bool:
    """What neither side knows is left out, but for the first question."""
    known = quantity.baseline is not None or quantity.candidate is not None
    return known or name == "output_tokens_per_second"


def _line(row: _Row, quantity: Quantity, unit: str) -> Line:
    sides, applies = (quantity.baseline, quantity.candidate), quantity.applies
    baseline, candidate = (
        _cell(value, row, each) for value, each in zip(sides, applies, strict=True)
    )
    return Line(row.label, baseline, candidate, _change(quantity), unit)


def _cell(value: float | None, row: _Row, applies: bool) -> str:
    if not applies:
        return "-"
    return "?" if value is None else f"{row.factor * value:.{row.digits}f}"


def _change(quantity: Quantity) -> str:
    if quantity.difference is not None:
        return f"{100 * quantity.difference:+.0f}"
    if quantity.ratio is not None:
        return times(quantity.ratio)
    both = quantity.baseline is not None and quantity.candidate is not None
    return "no ratio" if both and quantity.compared is False else ""


def _unit(comparison: Comparison, name: str, row: _Row) -> str:
    if name == "output_tokens_per_second":
        means = dict.fromkeys(
            _COUNTED[point.means] for point in comparison.points if point.means is not None
        )
        return ", ".join((row.unit, " / ".join(means))) if means else row.unit
    if name == "effective_microbatches":
        runs = (comparison.baseline, comparison.candidate)
        slots = {run.slots for run in runs if run.slots is not None}
        return "of " + " / ".join(map(str, sorted(slots))) if slots else ""
    return row.unit
