"""What a GPU draws, how hot it is, and what holds it back."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana import palette
from grafana.figures import NONE_SEEN, About, Figure, Query
from grafana.gpu.names import BY, NAME
from grafana.limits import limit
from grafana.panels import time_series
from grafana.queries import GPUS


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [
        (_power(), 12, 8),
        (_energy(), 12, 8),
        (_temperature(), 8, 7),
        (_clock(), 8, 7),
        (_throttled(), 8, 7),
    ]


def _power() -> Panel:
    return _gauge(
        "Power",
        catalog.GPU_POWER_WATTS,
        "watt",
        About(
            "How much power does each GPU draw? Mean of the last complete second, from the "
            "driver's 20 ms ring.",
            "alike on all stages.",
            "one above the others works more; one below is throttled, idle or waits.",
        ),
    )


def _energy() -> Panel:
    energy = GPUS.rate(catalog.GPU_ENERGY_JOULES)
    panel = time_series(
        Figure(
            title="Energy per second",
            about=About(
                "How much energy does each GPU use? The driver's own counter, carried on by "
                "all power samples, so this is a mean that misses nothing between scrapes.",
                "the level of the panel at the left.",
                "far from it: the power seen once a scrape is not typical of the time between.",
            ),
            queries=[Query(f"sum by ({BY}) ({energy})", NAME)],
            unit="watt",
            minimum=0,
            colors=palette.by_number("GPU"),
        )
    )
    panel.interval = "1m"
    return panel


def _temperature() -> Panel:
    return _gauge(
        "Temperature",
        catalog.GPU_TEMPERATURE_CELSIUS,
        "celsius",
        About(
            "How hot is each GPU?",
            "alike, below what the data sheet calls its slowdown temperature.",
            "the hot one will be slowed down, and with it the whole pipeline: look at its fans.",
        ),
    )


def _clock() -> Panel:
    return _gauge(
        "SM clock",
        catalog.GPU_SM_CLOCK_HERTZ,
        "hertz",
        About(
            "How fast does each GPU run?",
            "alike on all under load.",
            "one below the others is slowed down: the panel beside says why.",
        ),
    )


def _throttled() -> Panel:
    return time_series(
        Figure(
            title="Slowed down, by reason",
            about=About(
                "Is a GPU held back? Share of time in which the driver named the reason; a reason "
                "appears when first seen.",
                "nothing, or gpu_idle while there is no load.",
                "thermal: cooling. power brake: supply. sw_power_cap: the limit. The slowest stage "
                "sets the pace of all.",
            ),
            queries=[
                Query(
                    f"max by ({BY}, reason) ({GPUS.rate(catalog.GPU_THROTTLED_SECONDS)})",
                    "GPU {{gpu}} {{reason}}",
                )
            ],
            unit="percentunit",
            no_data=NONE_SEEN,
            minimum=0,
            maximum=1,
            thresholds=limit("GpuThrottled"),
            alerts=("GpuThrottled",),
        )
    )


def _gauge(title: str, key: str, unit: str, about: About) -> Panel:
    return time_series(
        Figure(
            title=title,
            about=about,
            queries=[Query(f"max by ({BY}) ({GPUS.now(key)})", NAME)],
            unit=unit,
            minimum=0,
            colors=palette.by_number("GPU"),
        )
    )
