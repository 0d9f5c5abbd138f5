"""Draws panels whose queries are joined into one frame: tables, and points of one against another."""

from __future__ import annotations

from collections.abc import Sequence

from bench.previews.axes import box, text
from bench.previews.data import Series, Window
from bench.previews.drawings import lcd, nothing
from bench.previews.reading import DIM, LINE, TEXT, Field, Json

Rows = list[dict[str, str | float]]


def joined(panel: Json, series: Sequence[Series]) -> Rows:
    """What the panel's transformations make of its queries: rows with renamed columns, in order."""
    join, keep, sort, organize = (one["options"] for one in panel["transformations"])
    assert sort["sort"] == [{"field": join["byField"]}]
    key = join["byField"]
    rows: dict[str, dict[str, str | float]] = {}
    several = len(panel["targets"]) > 1
    for one in series:
        row = rows.setdefault(one.labels.get(key, ""), {})
        row.update(one.labels)
        if one.last is not None:
            row[f"Value #{one.query}" if several else "Value"] = one.last
    names = organize["renameByName"]
    order = sorted(keep["include"]["names"], key=lambda name: organize["indexByName"][name])
    return [
        {names[name]: row[name] for name in order if name in row} for _, row in sorted(rows.items())
    ]


def table(
    panel: Json, series: Sequence[Series], window: Window, width: float, height: float
) -> str:
    """A heading and rows; shares as bars where the panel says so."""
    del window
    rows = joined(panel, series)
    if not rows:
        return nothing(panel, width, height)
    headings = list(panel["transformations"][-1]["options"]["renameByName"].values())
    lengths = [
        34
        if Field(panel, name).is_gauge
        else max(len(name), *(len(_words(panel, name, row)) for row in rows), 5) + 1
        for name in headings
    ]
    wide = width / sum(lengths)
    parts = [box(0, 22, width, 1, LINE)]
    x = 0.0
    for name, length in zip(headings, lengths, strict=True):
        parts.append(text(x + 6, 15, name, color="#6e9fff", weight="500"))
        field = Field(panel, name)
        for at, row in enumerate(rows[: int((height - 24) / 24)]):
            y = 24 + at * 24
            value = row.get(name)
            if field.is_gauge and isinstance(value, float):
                parts.append(lcd(field, value, (x + 4, y + 3), (length * wide - 60, 17)))
                parts.append(text(x + length * wide - 8, y + 16, field.text(value), color=TEXT,
                                  anchor="end"))  # fmt: skip
            else:
                words = _words(panel, name, row)
                parts.append(text(x + 6, y + 16, words, color=TEXT if words else DIM, size=12))
        x += length * wide
    return "".join(parts)


def _words(panel: Json, name: str, row: dict[str, str | float]) -> str:
    value = row.get(name, "")
    return Field(panel, name).text(value) if isinstance(value, float) else value


def scatter(
    panel: Json, series: Sequence[Series], window: Window, width: float, height: float
) -> str:
    """One point a row, of two of its columns."""
    del window
    one = panel["options"]["series"][0]
    across, up = (one[axis]["matcher"]["options"] for axis in ("x", "y"))
    rows = joined(panel, series)
    if not rows:
        return nothing(panel, width, height)
    left, plot = 58.0, height - 34
    field = Field(panel, up)
    parts = []
    for at in range(5):
        y, x = plot - plot * at / 4, left + (width - left - 20) * at / 4
        parts += [box(left, y, width - left, 0.6, LINE), box(x, 0, 0.6, plot, LINE)]
        parts.append(text(left - 6, y + 4, field.text(at / 4), anchor="end"))
        parts.append(text(x, plot + 14, field.text(at / 4), anchor="middle"))
    parts.append(text(width / 2, plot + 30, across, anchor="middle"))
    for row in rows:
        if isinstance(row.get(across), float) and isinstance(row.get(up), float):
            x = left + (width - left - 20) * float(row[across])
            y = plot - plot * float(row[up])
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="#0072B2" opacity="0.8"/>')
    return "".join(parts)
