"""Stages by time: what truly happened above what the exporter said, as one SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.nccl_truth import Play, StageTruth, binned

BIN_SECONDS = 0.1
PIXELS_PER_SECOND = 28
_ROW, _GAP, _HEAD, _LEFT = 18, 3, 20, 150
COLORS = {"working": "#2a7f62", "waiting": "#e0a030", "idle": "#e6e6e6", "resident": "#9db8d2"}
"""Resident: working or waiting, which was not told."""
Timelines = Mapping[tuple[str, int, str], Sequence[tuple[float, float, float | None]]]
"""By scenario, stage and way: second, working share, waiting share or `None`."""
DRAWN = {"all": "said", "all, levels": "levels given"}
"""The ways that are drawn, and what they are called."""


def picture(
    plays: Sequence[Play], truths: Mapping[tuple[str, int], StageTruth], said: Timelines
) -> str:
    """The load of every play from left to right, a row for the truth and one for each way."""
    parts: list[str] = [*_legend()]
    top, width = 30, 0.0
    for play in plays:
        start, end = play.phases["main"]
        width = max(width, end - start)
        parts.append(_text(4, top + 13, play.scenario, bold=True))
        top += _HEAD
        for stage in range(play.stages):
            truth = truths.get((play.scenario, stage))
            if truth is not None:
                parts += _row(top, f"stage {stage}: true", *_true(truth, start, end))
            top += _ROW + 1
            for way, name in DRAWN.items():
                all_told = said.get((play.scenario, stage, way))
                if all_told is not None:
                    told = [each for each in all_told if start <= each[0] < end]
                    parts += _told(top, f"stage {stage}: {name}", told, start)
                    top += _ROW + 1
            top += _GAP
        top += 6
    wide = int(_LEFT + width * PIXELS_PER_SECOND + 10)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{top}" '
        f'viewBox="0 0 {wide} {top}" font-family="sans-serif" font-size="11">'
        f'<rect width="{wide}" height="{top}" fill="#fff"/>'
    )
    return head + "\n".join(parts) + "</svg>\n"


def _true(truth: StageTruth, start: float, end: float) -> tuple[list[float], list[float]]:
    count = max(int((end - start) / BIN_SECONDS), 1)
    return tuple(binned(spans, start, BIN_SECONDS, count) for spans in (truth.works, truth.waits))  # type: ignore[return-value]  # two


def _row(top: int, name: str, working: list[float], waiting: list[float]) -> list[str]:
    wide = len(working) * BIN_SECONDS * PIXELS_PER_SECOND
    both = [min(a + b, 1.0) for a, b in zip(working, waiting, strict=True)]
    step = BIN_SECONDS * PIXELS_PER_SECOND
    return [
        _text(12, top + 13, name),
        f'<rect x="{_LEFT}" y="{top}" width="{wide:.0f}" height="{_ROW}" fill="{COLORS["idle"]}"/>',
        _area(both, top, step, "waiting"),
        _area(working, top, step, "working"),
    ]


def _told(
    top: int, name: str, told: Iterable[tuple[float, float, float | None]], start: float
) -> list[str]:
    parts = [_text(12, top + 13, name)]
    for second, working, waiting in told:
        left = _LEFT + (second - start) * PIXELS_PER_SECOND
        parts.append(_bar(left, top, 1.0, "idle"))
        if waiting is None:
            parts.append(_bar(left, top, working, "resident"))
        else:
            parts.append(_bar(left, top, working + waiting, "waiting"))
            parts.append(_bar(left, top, working, "working"))
    return parts


def _bar(left: float, top: int, share: float, state: str) -> str:
    height = _ROW * min(max(share, 0.0), 1.0)
    return (
        f'<rect x="{left:.1f}" y="{top + _ROW - height:.1f}" width="{PIXELS_PER_SECOND}" '
        f'height="{height:.1f}" fill="{COLORS[state]}"/>'
    )


def _area(shares: Sequence[float], top: int, step: float, state: str) -> str:
    """Steps from the bottom of the row."""
    steps = "".join(f"V{top + _ROW * (1.0 - share):.1f}h{step:g}" for share in shares)
    bottom = top + _ROW
    return f'<path d="M{_LEFT} {bottom}{steps}V{bottom}Z" fill="{COLORS[state]}"/>'


def _legend() -> Iterable[str]:
    left = _LEFT
    for state, color in COLORS.items():
        yield f'<rect x="{left}" y="8" width="12" height="12" fill="{color}"/>'
        name = "resident, not told which" if state == "resident" else state
        yield _text(left + 16, 18, name)
        left += 90


def _text(left: float, base: float, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{left:g}" y="{base:g}"{weight}>{text}</text>'
