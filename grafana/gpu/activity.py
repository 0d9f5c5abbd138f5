"""When kernels are on a GPU, and whether they work."""

from __future__ import annotations

from grafana_foundation_sdk.models.dashboard import Panel

from exporter import metric_catalog as catalog
from grafana import palette
from grafana.figures import About, Figure, Query
from grafana.gpu.names import BY, NAME
from grafana.panels import status_history, time_series
from grafana.queries import GPUS, in_order
from grafana.tables import scatter


def panels() -> list[tuple[Panel, int, int]]:
    """The panels of this row, each with its width and height."""
    return [
        (_resident(), 12, 8),
        (_resident_and_power(), 12, 8),
        (_sm_active(), 12, 8),
        (_dram_active(), 12, 8),
    ]


def _covered(part: str, signal: str) -> str:
    """Integrated share of the time that samples of the signal cover."""
    numerator = GPUS.rate(part)
    whole = GPUS.rate(catalog.GPU_OBSERVED_SECONDS, signal=signal)
    return f"sum by ({BY}) ({numerator}) / (sum by ({BY}) ({whole}) > 0)"


def _resident() -> Panel:
    return status_history(
        Figure(
            title="Kernel resident",
            about=About(
                "When is any kernel on the GPU? Share of time, integrated from the driver's ring. "
                "A kernel that waits is resident too: an upper bound of work.",
                "high while the server has requests.",
                "gaps here are idle for certain; whether the rest is work, power says.",
            ),
            queries=[
                Query(in_order(_covered(catalog.GPU_RESIDENT_SECONDS, "utilization"), "gpu"), NAME)
            ],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
        ),
        columns=60,
    )


def _resident_and_power() -> Panel:
    share = GPUS.now(catalog.GPU_UTILIZATION)
    watts = GPUS.now(catalog.GPU_POWER_WATTS)
    most = GPUS.now(catalog.GPU_POWER_LIMIT_WATTS)
    return scatter(
        Figure(
            title="Power against residency",
            about=About(
                "Do busy GPUs work? Each point is a GPU: how long a kernel was resident in the "
                "last complete second, and its power as a share of the limit.",
                "points together.",
                "right and low: kernels are resident and wait, as an NCCL receive does. Right and "
                "alone at the top: the stage that sets the pace.",
            ),
            queries=[
                Query(f"max by (uuid) ({share})", instant=True),
                Query(f"max by (uuid) ({watts} / {most})", instant=True),
            ],
            unit="percentunit",
            decimals=0,
            minimum=0,
            maximum=1,
        ),
        x="Kernel resident",
        y="Power, of the limit",
        key="uuid",
    )


def _sm_active() -> Panel:
    return _gpm(
        "SM activity",
        catalog.GPU_SM_ACTIVE_SECONDS,
        About(
            "How much of each GPU's processors is active? Integrated from GPM; not observable on "
            "cards without it.",
            "steady under load, alike on all.",
            "one GPU above the others is the stage that sets the pace: the others' kernels wait.",
        ),
    )


def _dram_active() -> Panel:
    return _gpm(
        "DRAM activity",
        catalog.GPU_DRAM_ACTIVE_SECONDS,
        About(
            "How much of each GPU's memory bandwidth is used? Integrated from GPM; decode reads "
            "weights, so this is what bounds it.",
            "high and alike while decoding.",
            "low beside full residency: kernels wait, or batches are too small to pay.",
        ),
    )


def _gpm(title: str, key: str, about: About) -> Panel:
    return time_series(
        Figure(
            title=title,
            about=about,
            queries=[Query(_covered(key, "gpm"), NAME)],
            unit="percentunit",
            minimum=0,
            maximum=1,
            colors=palette.by_number("GPU"),
        )
    )
