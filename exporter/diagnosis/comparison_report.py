"""A comparison → text for a terminal of 80 columns, or one object for JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from exporter.diagnosis.compared_points import Means
from exporter.diagnosis.compared_run import Run, printable
from exporter.diagnosis.comparison import ChangedFact, Comparison, Quantity
from exporter.diagnosis.comparison_cautions import cautions
from exporter.diagnosis.comparison_wording import SAME_RATIO, sentence
from exporter.diagnosis.terminal import BOLD, GREEN, RED, YELLOW, apart, paint, wrapped

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


def comparison_object(comparison: Comparison) -> dict[str, object]:
    """The comparison as an object; `None` where a figure is not known or not compared."""
    return {
        "compared": comparison.throughput_ratio is not None,
        "summary": sentence(comparison),
        "baseline": _side_object(comparison, 0),
        "candidate": _side_object(comparison, 1),
        "figures": {
            name: {
                "baseline": each.baseline,
                "candidate": each.candidate,
                "ratio": each.ratio,
                "difference": each.difference,
            }
            for name, each in comparison.quantities.items()
        },
        "facts": [
            {
                "fact": each.name,
                "baseline": each.baseline,
                "candidate": each.candidate,
                "unknown": each.unknown,
            }
            for each in comparison.changed_facts
        ],
        "cautions": cautions(comparison),
    }


def comparison_text(comparison: Comparison, *, color: bool = False) -> str:
    """The comparison for people; as readable without color."""
    lines = [*_head(comparison, color), *_figures(comparison, color)]
    lines += [*_changes(comparison, color)]
    found = cautions(comparison)
    if found:
        lines += ["", paint("beware", BOLD, color)]
        lines += [line for each in found for line in wrapped(each, "- ")]
    return "\n".join(lines) + "\n"


def _side_object(comparison: Comparison, side: int) -> dict[str, object]:
    run = (comparison.baseline, comparison.candidate)[side]
    return {
        "layout": run.layout,
        "verdict": run.verdict,
        "confidence": run.confidence,
        "window_seconds": run.window_seconds,
        "window_streams": run.streams,
        "output_counted_by": comparison.points[side].means,
    }


def _head(comparison: Comparison, color: bool) -> Iterator[str]:
    ratio = comparison.throughput_ratio
    title, style = "cannot tell", YELLOW
    if ratio is not None:
        title, style = f"{_times(ratio)} the output", YELLOW
        if abs(ratio - 1.0) > SAME_RATIO:
            style = GREEN if ratio > 1.0 else RED
    names = " -> ".join(name.removeprefix("the ") for name in comparison.names)
    yield paint(title, BOLD + style, color) + apart(title, names) + names
    yield from wrapped(sentence(comparison))
    yield ""
    yield from wrapped(_side(comparison.baseline), "baseline   ")
    yield from wrapped(_side(comparison.candidate), "candidate  ")


def _side(run: Run) -> str:
    version = run.facts.get("version")
    sure = "" if run.confidence is None else f" ({run.confidence:.2f})"
    seconds = run.window_seconds
    parts = [
        run.layout or "layout not known",
        "" if version is None else f"SGLang {printable(version)}",
        run.verdict.replace("_", " ") + sure,
        "no steady window" if seconds is None else f"window {seconds:.1f} s",
    ]
    return ", ".join(part for part in parts if part)


def _figures(comparison: Comparison, color: bool) -> Iterator[str]:
    yield ""
    names = [name.removeprefix("the ") for name in comparison.names]
    heads = f"{'':<21}{names[0]:>11}{names[1]:>11}{'change':>10}"
    yield paint(heads, BOLD, color)
    blocks = [
        [
            _line(row, quantity, _unit(comparison, name, row))
            for name, row in block.items()
            if _is_shown(name, quantity := comparison.quantities[name])
        ]
        for block in _TABLE
    ]
    yield from "\n\n".join("\n".join(block) for block in blocks if block).split("\n")


def _is_shown(name: str, quantity: Quantity) -> bool:
    """What neither side knows is left out, but for the first question."""
    known = quantity.baseline is not None or quantity.candidate is not None
    return known or name == "output_tokens_per_second"


def _line(row: _Row, quantity: Quantity, unit: str) -> str:
    cells = [
        _cell(value, row, applies)
        for value, applies in zip(
            (quantity.baseline, quantity.candidate), quantity.applies, strict=True
        )
    ]
    return f"{row.label:<21}{cells[0]:>11}{cells[1]:>11}{_change(quantity):>10}  {unit}".rstrip()


def _cell(value: float | None, row: _Row, applies: bool) -> str:
    if not applies:
        return "-"
    return "?" if value is None else f"{row.factor * value:.{row.digits}f}"


def _change(quantity: Quantity) -> str:
    if quantity.difference is not None:
        return f"{100 * quantity.difference:+.0f}"
    if quantity.ratio is not None:
        return _times(quantity.ratio)
    both = quantity.baseline is not None and quantity.candidate is not None
    return "no ratio" if both and quantity.compared is False else ""


def _times(ratio: float) -> str:
    if ratio < 0.1:
        return f"{ratio:.2g}x"
    return f"{ratio:.2f}x" if ratio < 10.0 else f"{ratio:.0f}x"


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


def _changes(comparison: Comparison, color: bool) -> Iterator[str]:
    facts = comparison.changed_facts
    yield ""
    yield paint("server", BOLD, color)
    known = [each for each in facts if each.unknown is None]
    for each in known:
        yield from wrapped(
            f"{printable(each.baseline)} -> {printable(each.candidate)}", f"{each.name}  "
        )
    if not known:
        shared = comparison.baseline.facts.keys() & comparison.candidate.facts.keys()
        yield (
            "the same flags, as far as both are known" if shared else "no flag known on both sides"
        )
    for side in ("baseline", "candidate"):
        yield from _one_sided(side, [each for each in facts if each.unknown == side])


def _one_sided(unknown: str, facts: list[ChangedFact]) -> Iterator[str]:
    if not facts:
        return
    told = ", ".join(
        f"{each.name} {printable(each.candidate if unknown == 'baseline' else each.baseline)}"
        for each in facts
    )
    yield f"not known of the {unknown}:"
    yield from wrapped(told, "  ")
