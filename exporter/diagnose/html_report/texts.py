"""Numbers and instants → text for the report; what is not known is a question mark. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from exporter.diagnosis.figures import StageFigures

UNKNOWN = "?"


def percent(ratio: float | None) -> str:
    """A share in whole percent; `?` if not known."""
    return UNKNOWN if ratio is None else f"{100 * ratio:.0f}\u00a0%"


def number(value: float | None, digits: int = 0) -> str:
    """A number with thin thousands; `?` if not known."""
    return UNKNOWN if value is None else f"{value:,.{digits}f}".replace(",", "\u2009")


def latency(seconds: float) -> str:
    """A time people wait for, in milliseconds below a second."""
    return f"{seconds:.2f} s" if seconds >= 1.0 else f"{1000 * seconds:.1f} ms"


def instant(at: float | None) -> str:
    """An instant in UTC; `?` if not known or beyond the calendar."""
    try:
        return UNKNOWN if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


def work_text(stage: StageFigures) -> str:
    """The working share of a stage, or its upper bound; `?` if neither is known."""
    if stage.working_ratio is None and stage.working_at_most_ratio is not None:
        return f"\u2264 {percent(stage.working_at_most_ratio)}"
    return percent(stage.working_ratio)
