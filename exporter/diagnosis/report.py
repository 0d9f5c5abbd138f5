"""A diagnosis → text for a terminal of 80 columns, or the object of the contract. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from exporter.diagnosis.advice import advice
from exporter.diagnosis.figures import Figures, StageFigures
from exporter.diagnosis.findings import Evidence, Verdict
from exporter.diagnosis.terminal import (
    BOLD,
    COLUMNS,
    DIM,
    GREEN,
    RED,
    WIDE,
    YELLOW,
    Paper,
)
from exporter.diagnosis.verdict import Diagnosis
from exporter.diagnosis.wording import gain_text, sentence

_BAR = 24


def contract(
    diagnosis: Diagnosis,
    more_figures: Mapping[str, object] | None = None,
    tried_cap: int | None = None,
) -> dict[str, object]:
    """The contract's object; `more_figures` join the diagnosis' own; `tried_cap`: see `advice`."""
    return {
        "verdict": diagnosis.verdict,
        "confidence": round(diagnosis.confidence, 3),
        "summary": sentence(diagnosis),
        "evidence": [asdict(each) for each in diagnosis.evidence],
        "also": list(diagnosis.also),
        "gain": asdict(diagnosis.gain),
        "advice": advice(diagnosis, tried_cap),
        "missing": list(diagnosis.missing),
        "figures": {**diagnosis.figures.as_json(), **(more_figures or {})},
    }


def as_text(diagnosis: Diagnosis, paper: Paper = WIDE, *, tried_cap: int | None = None) -> str:
    """The report for people; as readable without color. `tried_cap`: see `advice`."""
    lines = [*_head(diagnosis, paper), *_evidence(diagnosis, paper)]
    lines += [*_stages(diagnosis.figures, paper), *_slots(diagnosis.figures, paper)]
    lines += _listed("try next", advice(diagnosis, tried_cap), paper)
    if diagnosis.missing:
        lines += _listed("not known", list(diagnosis.missing), paper)
    return "\n".join(lines) + "\n"


def _verdict_style(verdict: Verdict) -> str:
    if verdict is Verdict.HEALTHY:
        return BOLD + GREEN
    return BOLD + (YELLOW if verdict is Verdict.CANNOT_TELL else RED)


def _head(diagnosis: Diagnosis, paper: Paper) -> Iterator[str]:
    figures = diagnosis.figures
    name = diagnosis.verdict.replace("_", " ")
    sure = f"confidence {diagnosis.confidence:.2f}"
    yield paper.paint(name, _verdict_style(diagnosis.verdict)) + paper.apart(name, sure) + sure
    yield from paper.wrapped(sentence(diagnosis))
    yield from paper.wrapped(gain_text(diagnosis), "gain    ")
    if diagnosis.also:
        yield from paper.wrapped(", ".join(diagnosis.also).replace("_", " "), "also    ")
    yield from paper.wrapped(_what(figures), "server  ")
    if figures.window_seconds is not None:
        yield from paper.wrapped(
            f"{figures.window_seconds:.1f} s: {figures.window_chosen_by}", "window  "
        )
    rate = figures.log.tokens_per_second
    if rate is not None:
        yield f"output  {rate:.0f} tokens/s{_alone(figures)}"


def _alone(figures: Figures) -> str:
    scaling = figures.scaling_ratio
    if scaling is None:
        return ""
    if figures.pp_size == 1:
        return f"; {scaling:.3g} times a single stream"
    return f"; {scaling:.2f} of {figures.pp_size} single streams"


def _what(figures: Figures) -> str:
    facts = figures.facts
    parts = [figures.server]
    if facts.get("version"):
        parts.append(f"SGLang {facts['version']}")
    for key, short in (("pp_size", "PP"), ("tp_size", "TP"), ("dp_size", "DP")):
        if isinstance(facts.get(key), int):
            parts.append(f"{short}{facts[key]}")
    if facts.get("pp_async_batch_depth"):
        parts.append(f"async depth {facts['pp_async_batch_depth']}")
    return ", ".join(parts)


def _evidence(diagnosis: Diagnosis, paper: Paper) -> Iterator[str]:
    if not diagnosis.evidence:
        return
    yield ""
    yield paper.paint("evidence", BOLD)
    for each in diagnosis.evidence:
        mark = "+" if each.supports else "-"
        yield f"{mark} {each.quantity:<29} {_value(each):>8}   {each.expected}"[:COLUMNS]
        for line in paper.wrapped(each.source, "    "):
            yield paper.paint(line, DIM)


def _value(evidence: Evidence) -> str:
    value = evidence.value
    return "?" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _stages(figures: Figures, paper: Paper) -> Iterator[str]:
    if not figures.stages:
        return
    yield ""
    heads = "work   wait   idle    watts" if figures.measured else "resident      idle    watts"
    yield paper.paint(f"stage  gpu      {heads}", BOLD)
    for stage in figures.stages:
        gpus = ",".join(map(str, stage.gpus))
        watts = "?" if stage.watts is None else f"{stage.watts:.0f}"
        if figures.measured:
            shares = f"{_share(stage.working_ratio)}  {_share(stage.waiting_ratio)}"
        else:
            shares = f"{_resident(stage)}      "
        yield (
            f"{stage.pp_rank:>5}  {gpus:<7}{shares}  {_share(stage.idle_ratio)}  {watts:>7}  "
            f"{stage_bar(stage)}"
        ).rstrip()
    if any(_is_momentary(stage) for stage in figures.stages):
        yield "* one reading at an instant"


def _resident(stage: StageFigures) -> str:
    if _is_momentary(stage):
        return f"{_share(stage.momentary_utilization_ratio)}*"
    return f"{_share(stage.working_at_most_ratio)} "


def _is_momentary(stage: StageFigures) -> bool:
    """Whether nothing better than a single reading of the polled gauge is known."""
    known = stage.working_ratio, stage.working_at_most_ratio
    return known == (None, None) and stage.momentary_utilization_ratio is not None


def _share(ratio: float | None) -> str:
    return "    ?" if ratio is None else f"{100 * ratio:4.0f}%"


def stage_bar(stage: StageFigures) -> str:
    """Work as #, waiting as -, a bound on work as ?."""
    if stage.working_ratio is not None:
        work = round(_BAR * stage.working_ratio)
        return "#" * work + "-" * round(_BAR * (stage.waiting_ratio or 0.0))
    return "?" * round(_BAR * (stage.working_at_most_ratio or 0.0))


def _slots(figures: Figures, paper: Paper) -> Iterator[str]:
    slots = figures.slots
    if slots.slots is None:
        return
    yield ""
    if slots.sizes is None:
        told = f"not observable: {slots.reason}"
        if slots.effective is not None:
            told = f"{slots.effective:.2g} of {slots.slots} in effect: {slots.active_from}"
        yield from paper.wrapped(told, "slots   ")
        return
    sizes = [*slots.sizes, *[0] * (slots.slots - len(slots.sizes))]
    yield from paper.wrapped(" ".join(map(str, sizes)), "slots   ")


def _listed(title: str, items: list[str], paper: Paper) -> Iterator[str]:
    if not items:
        return
    yield ""
    yield paper.paint(title, BOLD)
    for item in items:
        yield from paper.wrapped(item, "- ")
