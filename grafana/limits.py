"""Steps of color from the alerts' own numbers, and the way to their runbooks."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import ThresholdsConfig

from exporter.thresholds import ALERT_PREFIX, LEAST_MEASURED_RATIO, THRESHOLDS, Fires
from grafana import palette
from grafana.links import RUNBOOKS

_JUST_ABOVE: Final = 1e-6
"""Grafana colors from a bound on; an alert that fires above 0 must leave 0 uncolored."""


def limit(alert: str, warning: str | None = None, *, complement: bool = False) -> ThresholdsConfig:
    """Bad where the alert fires, good where it does not.

    Args:
        alert: Its name without prefix.
        warning: A second alert on the same figure that fires earlier.
        complement: The figure shown is one less the figure of the alert.

    Raises:
        KeyError: There is no such alert.
    """
    bounds = [(_bound(alert, complement), palette.BAD)]
    if warning:
        bounds.append((_bound(warning, complement), palette.POOR))
    if _high_is_bad(alert) is not complement:
        return palette.steps(palette.GOOD, *reversed(bounds))
    colors = [color for _, color in bounds[1:]] + [palette.GOOD]
    above = [(bound, color) for (bound, _), color in zip(bounds, colors, strict=True)]
    return palette.steps(palette.BAD, *above)


def loaded_occupancy_steps() -> ThresholdsConfig:
    """For occupancy while in flight: where bubbles alert, and below that where a herd may be."""
    known = limit("BubbleRatioHigh", "QueueWithIdleStages", complement=True).steps or []
    herd = 1 / THRESHOLDS["ThunderingHerd"].gates["stages to a micro-batch"]
    above = [(bound.value, bound.color) for bound in known if bound.value is not None]
    return palette.steps(palette.WORST, (herd, palette.BAD), *above)


def measured_steps() -> ThresholdsConfig:
    """For the share of stage time that is measured: below it stages are not compared."""
    return palette.steps(palette.POOR, (LEAST_MEASURED_RATIO, palette.GOOD))


def runbook_of(alert: str) -> str:
    """Where the page of an alert is, relative to the folder of all."""
    if alert not in THRESHOLDS:
        raise KeyError(alert)
    return f"{RUNBOOKS}{ALERT_PREFIX}{alert}.md"


def _high_is_bad(alert: str) -> bool:
    return THRESHOLDS[alert].fires in (Fires.ABOVE, Fires.AT_OR_ABOVE)


def _bound(alert: str, complement: bool) -> float:
    threshold = THRESHOLDS[alert]
    value = threshold.value
    if threshold.fires is Fires.EQUAL:
        value += 1  # a state: fine from the next one on
    if threshold.fires is Fires.ABOVE:
        value += _JUST_ABOVE
    return round(1 - value, 9) if complement else value
