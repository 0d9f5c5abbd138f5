"""A comparison → text for a terminal of 80 columns, or one object for JSON. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.comparison.cautions import cautions
from exporter.comparison.compared import ChangedFact, Comparison
from exporter.comparison.run import printable
from exporter.comparison.table import Line, table
from exporter.comparison.wording import gives_more, headline, sentence, side_text
from exporter.diagnosis.terminal import BOLD, GREEN, RED, WIDE, YELLOW, Paper


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


def comparison_text(comparison: Comparison, paper: Paper = WIDE) -> str:
    """The comparison for people; as readable without color."""
    lines = [*_head(comparison, paper), *_figures(comparison, paper)]
    lines += [*_changes(comparison, paper)]
    found = cautions(comparison)
    if found:
        lines += ["", paper.paint("beware", BOLD)]
        lines += [line for each in found for line in paper.wrapped(each, "- ")]
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


def _head(comparison: Comparison, paper: Paper) -> Iterator[str]:
    title = headline(comparison)
    style = {True: GREEN, False: RED, None: YELLOW}[gives_more(comparison)]
    names = " -> ".join(name.removeprefix("the ") for name in comparison.names)
    yield paper.paint(title, BOLD + style) + paper.apart(title, names) + names
    yield from paper.wrapped(sentence(comparison))
    yield ""
    yield from paper.wrapped(side_text(comparison.baseline), "baseline   ")
    yield from paper.wrapped(side_text(comparison.candidate), "candidate  ")


def _figures(comparison: Comparison, paper: Paper) -> Iterator[str]:
    yield ""
    names = [name.removeprefix("the ") for name in comparison.names]
    heads = f"{'':<21}{names[0]:>11}{names[1]:>11}{'change':>10}"
    yield paper.paint(heads, BOLD)
    blocks = ["\n".join(map(_row, block)) for block in table(comparison)]
    yield from "\n\n".join(blocks).split("\n")


def _row(line: Line) -> str:
    cells = f"{line.label:<21}{line.baseline:>11}{line.candidate:>11}{line.change:>10}"
    return f"{cells}  {line.unit}".rstrip()


def _changes(comparison: Comparison, paper: Paper) -> Iterator[str]:
    facts = comparison.changed_facts
    yield ""
    yield paper.paint("server", BOLD)
    known = [each for each in facts if each.unknown is None]
    for each in known:
        yield from paper.wrapped(
            f"{printable(each.baseline)} -> {printable(each.candidate)}", f"{each.name}  "
        )
    if not known:
        shared = comparison.baseline.facts.keys() & comparison.candidate.facts.keys()
        yield (
            "the same flags, as far as both are known" if shared else "no flag known on both sides"
        )
    for side in ("baseline", "candidate"):
        yield from _one_sided(paper, side, [each for each in facts if each.unknown == side])


def _one_sided(paper: Paper, unknown: str, facts: list[ChangedFact]) -> Iterator[str]:
    if not facts:
        return
    told = ", ".join(
        f"{each.name} {printable(each.candidate if unknown == 'baseline' else each.baseline)}"
        for each in facts
    )
    yield f"not known of the {unknown}:"
    yield from paper.wrapped(told, "  ")
