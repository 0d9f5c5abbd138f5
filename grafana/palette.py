"""Colors that a color-blind reader can tell apart (Okabe and Ito's eight), and what they mean."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Threshold, ThresholdsConfig, ThresholdsMode

WORST: Final = "#8C2D04"
"""Darker than the eight: what is nearly empty looks like a hole."""
BAD: Final = "#D55E00"
POOR: Final = "#E69F00"
FAIR: Final = "#F0E442"
GOOD: Final = "#56B4E9"
BEST: Final = "#0072B2"
GREEN: Final = "#009E73"
PINK: Final = "#CC79A7"
GRAY: Final = "#8E8E8E"

UNTOLD: Final = "#A7C4D9"
"""Pale: work or waiting, nothing tells which."""

WORKING, WAITING, IDLE = BEST, POOR, GRAY
"""The three states of a stage's time, the same on every panel."""

SERIES: Final = (BEST, POOR, GREEN, PINK, GOOD, BAD, FAIR, GRAY)
"""For lines that have no meaning of their own, such as stages: by rank modulo eight."""

HEATMAP_SCHEME: Final = "Viridis"


def steps(base: str, *above: tuple[float, str]) -> ThresholdsConfig:
    """Colors by value: `base` below the first bound, then each color from its bound on."""
    found = [Threshold(value=None, color=base)]
    found += [Threshold(value=value, color=color) for value, color in above]
    return ThresholdsConfig(mode=ThresholdsMode.ABSOLUTE, steps=found)


OF_STATES: Final = {
    "^working$": WORKING,
    "^working or waiting": UNTOLD,
    "^waiting$": WAITING,
    "^idle$": IDLE,
}
"""Regular expression over the name of a band of stage time → its color."""


def by_number(word: str) -> dict[str, str]:
    """Regular expression over names such as `GPU 3 host` → color, by number modulo eight."""
    numbers = ("|".join(str(n) for n in range(at, 32, len(SERIES))) for at in range(len(SERIES)))
    return {f"^{word} 0?({each})( |$)": color for each, color in zip(numbers, SERIES, strict=True)}
