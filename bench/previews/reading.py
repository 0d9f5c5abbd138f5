"""What a panel's JSON says of its look: units, limits, colors and names of series."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]

TEXT, DIM, PANEL, LINE, PAGE = "#ccccdc", "#8e8e9a", "#181b1f", "#2c3235", "#111217"
PALETTE = ("#73BF69", "#F2CC0C", "#8AB8FF", "#FF780A", "#F2495C", "#5794F2", "#B877D9", "#705DA0")
"""Grafana's classic palette, for series without a color of their own."""
YELLOW_BLUE = ("#FFF899", "#1F60C4")
"""Grafana's continuous-YlBl."""
VIRIDIS = (
    "#440154",
    "#482878",
    "#3E4A89",
    "#31688E",
    "#26828E",
    "#1F9E89",
    "#35B779",
    "#6DCD59",
    "#B4DE2C",
    "#FDE725",
)
_SI = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " K"))
_SYMBOLS = {"watt": "W", "bytes": "B", "Bps": "B/s", "hertz": "Hz"}


class Field:
    """How one series or column of a panel is shown: defaults, changed by matching overrides."""

    def __init__(self, panel: Json, name: str) -> None:
        config = panel["fieldConfig"]
        self._found: Json = dict(config["defaults"])
        self.fixed: str | None = None
        for override in config["overrides"]:
            matcher = override["matcher"]
            by_name = matcher["id"] == "byName" and matcher["options"] == name
            by_pattern = matcher["id"] == "byRegexp" and re.search(matcher["options"], name)
            if by_name or by_pattern:
                for change in override["properties"]:
                    self._found[change["id"]] = change["value"]
                    if change["id"] == "color":
                        self.fixed = change["value"]["fixedColor"]
        self.unit: str = self._found.get("unit", "short")
        self.decimals: int | None = self._found.get("decimals")
        self.minimum: float | None = self._found.get("min")
        self.maximum: float | None = self._found.get("max")
        self.no_value: str = self._found.get("noValue", "No data")
        self._words: dict[str, str] = {
            value: result.get("text", value)
            for mapping in self._found.get("mappings", [])
            if mapping["type"] == "value"
            for value, result in mapping["options"].items()
        }
        self.is_gauge = self._found.get("custom.cellOptions", {}).get("type") == "gauge"
        self._mode = (self._found.get("color") or {}).get("mode", "")
        self.steps = [
            (-math.inf if step["value"] is None else step["value"], step["color"])
            for step in self._found["thresholds"]["steps"]
        ]

    def color(self, value: float) -> str:
        """By fixed color, continuous scheme or thresholds."""
        if self.fixed:
            return self.fixed
        if self._mode.startswith("continuous"):
            low, high = self.minimum or 0.0, 1.0 if self.maximum is None else self.maximum
            return between(YELLOW_BLUE, (value - low) / ((high - low) or 1))
        return str(next(color for bound, color in reversed(self.steps) if value >= bound))

    def text(self, value: float | None) -> str:
        """With its unit, as Grafana writes it."""
        if value is None or math.isnan(value):
            return self.no_value
        if f"{value:g}" in self._words:
            return self._words[f"{value:g}"]
        return formatted(value, self.unit, self.decimals)


def formatted(value: float, unit: str, decimals: int | None = None) -> str:
    """A value with its unit."""
    if unit == "percentunit":
        return f"{_plain(value * 100, decimals)}%"
    if unit == "s":
        if 0 < abs(value) < 1:
            return f"{_plain(value * 1000, decimals)} ms"
        return f"{_plain(value, decimals)} s"
    if unit == "celsius":
        return f"{_plain(value, decimals)} °C"
    symbol = _SYMBOLS.get(unit, "")
    if unit == "bytes":
        return f"{value / 2**30:.3g} GiB" if value >= 2**30 else f"{value / 2**20:.3g} MiB"
    for size, prefix in _SI:
        if abs(value) >= size:
            return f"{_plain(value / size, decimals)}{prefix}{symbol}"
    return f"{_plain(value, decimals)}{' ' if symbol else ''}{symbol}"


def _plain(value: float, decimals: int | None) -> str:
    if decimals is not None:
        return f"{value:.{decimals}f}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def series_name(legend: str, labels: Mapping[str, str]) -> str:
    """The legend with its labels filled in."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend)


def between(colors: tuple[str, ...], share: float) -> str:
    """The color at a share of the way through a scale."""
    place = min(max(share, 0.0), 1.0) * (len(colors) - 1)
    at = min(int(place), len(colors) - 2)
    part = place - at
    pair = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in colors[at : at + 2]]
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(*pair, strict=True))
