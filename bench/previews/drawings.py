"""Draws the content of one panel as SVG, as near to Grafana's own drawing as it needs to be.

Each function takes the panel's JSON, its series and the size in pixels, and returns SVG elements
with the origin at the top left of the content.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.previews.axes import LEFT, box, text, time_axis, value_axis, value_range
from bench.previews.data import Series, Window
from bench.previews.reading import (
    DIM,
    PALETTE,
    TEXT,
    VIRIDIS,
    YELLOW_BLUE,
    Field,
    Json,
    between,
)

Draw = Callable[[Json, Sequence[Series], Window, float, float], str]
_BOTTOM, _LEGEND_ROW = 18.0, 17.0
_BIG = 26.0


def nothing(panel: Json, width: float, height: float) -> str:
    """What Grafana shows where no query gives a series."""
    words = panel["fieldConfig"]["defaults"].get("noValue", "No data")
    return text(width / 2, height / 2, words, size=15, color=DIM, anchor="middle")


def stat(panel: Json, series: Sequence[Series], window: Window, width: float, height: float) -> str:
    """Big numbers side by side, over a sparkline of the first."""
    shown = series or [Series("", "A", {}, [])]
    parts = []
    mean = panel["options"]["reduceOptions"]["calcs"] == ["mean"]
    for at, one in enumerate(shown):
        field = Field(panel, one.name)
        values = [value for _, value in one.points]
        value = sum(values) / len(values) if mean and values else one.last
        if value is not None and not mean and one.points[-1][0] < window.end - 30:
            value = None
        share = width / len(shown)
        color = DIM if value is None else field.color(value)
        size = _BIG * 1.5 if value is not None and len(shown) == 1 else _BIG
        size = 15 if value is None else size
        middle = at * share + share / 2
        if panel["options"]["graphMode"] == "area" and values:
            parts.append(_sparkline(one, field, window, (at * share, share), height))
        if len(shown) > 1:
            parts.append(text(middle, height / 2 - 22, one.name, size=13, anchor="middle"))
        words = field.text(value)
        y = height / 2 + size / 3
        parts.append(text(middle, y, words, size=size, color=color, anchor="middle", weight="500"))
    return "".join(parts)


def _sparkline(
    one: Series, field: Field, window: Window, place: tuple[float, float], height: float
) -> str:
    left, width = place
    color = field.color(one.points[-1][1])
    low = min(0.0, *(value for _, value in one.points))
    high = field.maximum or max(value for _, value in one.points) or 1.0
    spread, top = (high - low) or 1.0, height * 0.62
    line = [
        (
            left + (at - window.begin) / (window.end - window.begin) * width,
            height - (value - low) / spread * (height - top),
        )
        for at, value in one.points
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
    area = f"{line[0][0]:.1f},{height} {path} {line[-1][0]:.1f},{height}"
    return (
        f'<polygon points="{area}" fill="{color}" opacity="0.18"/>'
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.2"/>'
    )


def time_series(
    panel: Json, series: Sequence[Series], window: Window, width: float, height: float
) -> str:
    """Lines or stacked areas, thresholds dashed, a table of mean and maximum below."""
    if not any(one.points for one in series):
        return nothing(panel, width, height)
    rows = min(len(series), 4)
    plot = height - _BOTTOM - rows * _LEGEND_ROW - 16
    custom = panel["fieldConfig"]["defaults"]["custom"]
    stacked = custom["stacking"]["mode"] == "normal"
    fields = [Field(panel, one.name) for one in series]
    colors = [field.fixed or PALETTE[at % 8] for at, field in enumerate(fields)]
    lines = _stacked(series) if stacked else [one.points for one in series]
    floor, top = value_range(panel, lines)

    def y(value: float) -> float:
        return plot - (value - floor) / (top - floor) * plot

    def x(at: float) -> float:
        return LEFT + (at - window.begin) / (window.end - window.begin) * (width - LEFT)

    parts = [value_axis(fields[0], floor, top, width, plot), time_axis(window, width, plot)]
    step = window.step(panel, width)
    below: list[tuple[float, float]] = []
    for one, color in zip(lines, colors, strict=True):
        for part in _unbroken(one, 1.5 * step):
            path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in part)
            if stacked:
                under = dict(below)
                back = [(at, under.get(at, 0.0)) for at, _ in reversed(part)]
                path += " " + " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in back)
                parts.append(f'<polygon points="{path}" fill="{color}" opacity="0.85"/>')
            else:
                parts.append(
                    f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.8"/>'
                )
        below = one
    if custom["thresholdsStyle"]["mode"] == "dashed":
        parts += [_dashed(y(bound), width, color) for bound, color in fields[0].steps[1:]
                  if floor <= bound <= top]  # fmt: skip
    parts.append(_table_legend(series, fields, colors, width, plot + _BOTTOM + 14))
    return "".join(parts)


def _stacked(series: Sequence[Series]) -> list[list[tuple[float, float]]]:
    sums: dict[float, float] = {}
    found = []
    for one in series:
        line = []
        for at, value in one.points:
            sums[at] = sums.get(at, 0.0) + value
            line.append((at, sums[at]))
        found.append(line)
    return found


def _unbroken(points: Sequence[tuple[float, float]], gap: float) -> list[list[tuple[float, float]]]:
    parts: list[list[tuple[float, float]]] = []
    for point in points:
        if parts and point[0] - parts[-1][-1][0] <= gap:
            parts[-1].append(point)
        else:
            parts.append([point])
    return parts


def _dashed(y: float, width: float, color: str) -> str:
    return (
        f'<line x1="{LEFT}" x2="{width:.0f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{color}" '
        'stroke-dasharray="8 6" opacity="0.8"/>'
    )


def _table_legend(
    series: Sequence[Series],
    fields: Sequence[Field],
    colors: Sequence[str],
    width: float,
    top: float,
) -> str:
    parts = [
        text(width - 70, top, "Mean", anchor="end", color="#6e9fff"),
        text(width - 6, top, "Max", anchor="end", color="#6e9fff"),
    ]
    for at, (one, field, color) in enumerate(zip(series[:4], fields, colors, strict=False)):
        y = top + (at + 1) * _LEGEND_ROW
        values = [value for _, value in one.points]
        parts.append(box(6, y - 6, 14, 4, color, 2))
        parts.append(text(26, y, one.name or "value", color=TEXT))
        mean = sum(values) / len(values) if values else None
        parts.append(text(width - 70, y, field.text(mean), color=TEXT, anchor="end"))
        highest = max(values, default=None)
        parts.append(text(width - 6, y, field.text(highest), color=TEXT, anchor="end"))
    if len(series) > 4:
        parts.append(text(width / 2, top, f"and {len(series) - 4} more", anchor="middle"))
    return "".join(parts)


def status_history(
    panel: Json, series: Sequence[Series], window: Window, width: float, height: float
) -> str:
    """Rows of cells, one a step of time."""
    if not series:
        return nothing(panel, width, height)
    plot = height - _BOTTOM - 18
    row = plot / len(series)
    step = window.step(panel, width)
    left = max(LEFT, 8 + 6.2 * max(len(one.name) for one in series))
    cell = (width - left) / max((window.end - window.begin) / step, 1)
    parts = []
    for at, one in enumerate(series):
        field = Field(panel, one.name)
        parts.append(text(left - 8, at * row + row / 2 + 4, one.name, color=TEXT, anchor="end"))
        for when, value in one.points:
            x = left + (when - window.begin) / (window.end - window.begin) * (width - left)
            start = max(x - cell, left)
            parts.append(box(start, at * row + 0.5, x - start + 0.3, row - 1, field.color(value)))
    field = Field(panel, "")
    return "".join([*parts, time_axis(window, width, plot), _keys(panel, field, left, plot + 32)])


def _keys(panel: Json, field: Field, left: float, y: float) -> str:
    """What the colors mean, as Grafana's legend of thresholds says it."""
    if panel["fieldConfig"]["defaults"]["color"]["mode"].startswith("continuous"):
        low, high = field.minimum or 0.0, 1.0 if field.maximum is None else field.maximum
        parts = [box(left + i * 3, y - 8, 3, 9, between(YELLOW_BLUE, i / 40)) for i in range(41)]
        parts.append(text(left + 130, y, f"{field.text(low)} or less … {field.text(high)}"))
        return "".join(parts)
    parts, x = [], left
    for at, (bound, color) in enumerate(field.steps):
        words = f"{field.text(bound)}+" if at else f"< {field.text(field.steps[1][0])}"
        parts += [box(x, y - 6, 14, 4, color, 2), text(x + 20, y, words, color=TEXT)]
        x += 40 + 7 * len(words)
    return "".join(parts)


def heat_map(
    panel: Json, series: Sequence[Series], window: Window, width: float, height: float
) -> str:
    """Cells of time and row, the brighter the more."""
    rows = list(series)
    if panel["targets"][0]["format"] == "heatmap":
        rows = _differences(rows)
    if not any(one.points for one in rows):
        return nothing(panel, width, height)
    plot = height - _BOTTOM - 18
    row = plot / len(rows)
    step = window.step(panel, width)
    cell = (width - LEFT) / max((window.end - window.begin) / step, 1)
    color = panel["options"]["color"]
    high = color.get("max") or max(value for one in rows for _, value in one.points) or 1.0
    parts = [
        f'<g transform="translate(12 {plot / 2:.0f}) rotate(-90)">'
        + text(0, 0, panel["options"]["yAxis"]["axisLabel"], anchor="middle")
        + "</g>"
    ]
    for at, one in enumerate(rows):
        y = plot - (at + 1) * row
        parts.append(text(LEFT - 8, y + row / 2 + 4, one.name, anchor="end"))
        for when, value in one.points:
            if value > panel["options"]["filterValues"]["le"]:
                x = LEFT + (when - window.begin) / (window.end - window.begin) * (width - LEFT)
                shade = between(VIRIDIS, (value / high) ** color["exponent"])
                start = max(x - cell, LEFT)
                parts.append(box(start, y + 0.5, x - start - 0.6, row - 1, shade))
    field = Field(panel, "")
    scale = [box(LEFT + i * 3, plot + 24, 3, 9, between(VIRIDIS, (i / 40))) for i in range(41)]
    words = f"{field.text(0.0)} … {field.text(high)}"
    parts += [time_axis(window, width, plot), *scale, text(LEFT + 130, plot + 32, words)]
    return "".join(parts)


def _differences(buckets: Sequence[Series]) -> list[Series]:
    """Cumulative buckets → what lies in each."""
    found = []
    below: dict[float, float] = {}
    for one in sorted(buckets, key=lambda series: float(series.labels["le"])):
        points = [(at, max(value - below.get(at, 0.0), 0.0)) for at, value in one.points]
        below = dict(one.points)
        found.append(Series(one.labels["le"], one.query, one.labels, points))
    return found


def lcd(field: Field, value: float, place: tuple[float, float], size: tuple[float, float]) -> str:
    """A bar of cells, lit up to the value, each in its own color."""
    (left, top), (width, height) = place, size
    low, high = field.minimum or 0.0, 1.0 if field.maximum is None else field.maximum
    cells = int(width / 9)
    lit = (value - low) / ((high - low) or 1) * cells
    return "".join(
        box(
            left + at * 9,
            top,
            7,
            height,
            field.color(low + (high - low) * (at + 1) / cells) if at < lit else "#22252b",
            1,
        )
        for at in range(cells)
    )
