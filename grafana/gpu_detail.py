"""GPU detail: activity, power, heat, memory and errors of each GPU, and how well it is sampled."""

from __future__ import annotations

from typing import Final

from grafana_foundation_sdk.models.dashboard import Dashboard, Panel

from exporter import metric_catalog as catalog
from grafana import palette
from grafana.figures import About, Figure, Query
from grafana.frame import GPU_VARIABLE, Row, dashboard
from grafana.limits import limit
from grafana.panels import status_history, time_series
from grafana.queries import GPUS, in_order
from grafana.tables import scatter, table_panel

UID: Final = "sglang-pipeline-gpu"
_BY: Final = "instance, gpu"
_NAME: Final = "GPU {{gpu}} {{instance}}"


def build() -> Dashboard:
    """The dashboard as Grafana's own types."""
    return dashboard(
        UID,
        "SGLang / GPU detail",
        "Activity, power, heat, memory and errors of each GPU, and how well it is sampled.",
        [GPU_VARIABLE],
        [
            Row("Who they are", [(_who(), 16, 9), (_up(), 8, 9)]),
            Row("Activity", [(_resident(), 12, 8), (_resident_and_power(), 12, 8)]),
            Row("Inside the kernels", [(_sm_active(), 12, 8), (_dram_active(), 12, 8)]),
            Row(
                "Power and heat",
                [
                    (_power(), 12, 8),
                    (_energy(), 12, 8),
                    (_temperature(), 8, 7),
                    (_clock(), 8, 7),
                    (_throttled(), 8, 7),
                ],
            ),
            Row(
                "Memory and bus",
                [(_memory(), 8, 7), (_pcie("sent"), 8, 7), (_pcie("received"), 8, 7)],
            ),
            Row(
                "Errors and samples",
                [(_xid(), 8, 7), (_missed(), 8, 7), (_sample_age(), 8, 7)],
            ),
        ],
    )


def _covered(part: str, signal: str) -> str:
    """Integrated share of the time that samples of the signal cover."""
    numerator = GPUS.rate(part)
    whole = GPUS.rate(catalog.GPU_OBSERVED_SECONDS, signal=signal)
    return f"sum by ({_BY}) ({numerator}) / (sum by ({_BY}) ({whole}) > 0)"


# --- who they are ------------------------------------------------------------------------------


def _who() -> Panel:
    return table_panel(
        Figure(
            title="GPUs and their ranks",
            about=About(
                "Which rank runs on which GPU?",
                "every GPU of the server has its stage.",
                "empty ranks: no scheduler process is known to run there; README, Which GPU is "
                "which stage.",
            ),
            queries=[
                Query(GPUS.now(catalog.GPU_INFO), instant=True),
                Query(f"max by (uuid) ({GPUS.now(catalog.GPU_MEMORY_TOTAL_BYTES)})", instant=True),
                Query(f"max by (uuid) ({GPUS.now(catalog.GPU_POWER_LIMIT_WATTS)})", instant=True),
            ],
            unit="string",
            units={"^Memory$": "bytes", "^Power limit$": "watt"},
        ),
        key="uuid",
        columns={
            "instance": "Instance",
            "gpu": "GPU",
            "model": "Model",
            "server": "Server",
            "dp_rank": "DP",
            "pp_rank": "Stage",
            "tp_rank": "TP",
            "Value #B": "Memory",
            "Value #C": "Power limit",
            "pci_bus_id": "PCI",
            "uuid": "UUID",
        },
    )


def _up() -> Panel:
    return status_history(
        Figure(
            title="The driver answers",
            about=About(
                "Does the driver answer for each GPU? 1 while it does.",
                "1 everywhere.",
                "a lost card keeps its last figures absent, not zero; look for XID errors below.",
            ),
            queries=[Query(in_order(f"min by ({_BY}) ({GPUS.now(catalog.GPU_UP)})", "gpu"), _NAME)],
            unit="short",
            decimals=0,
            minimum=0,
            maximum=1,
            thresholds=limit("GpuLost"),
            alerts=("GpuLost",),
        ),
        columns=60,
    )


# --- activity ----------------------------------------------------------------------------------


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
                Query(in_order(_covered(catalog.GPU_RESIDENT_SECONDS, "utilization"), "gpu"), _NAME)
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
            queries=[Query(_covered(key, "gpm"), _NAME)],
            unit="percentunit",
            minimum=0,
            maximum=1,
            colors=palette.by_number("GPU"),
        )
    )


# --- power and heat ----------------------------------------------------------------------------


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
                "How much energy does each GPU use? The driver's own counter, read every 10 s, so "
                "this is a mean over a minute or more and misses nothing between scrapes.",
                "the level of the panel at the left.",
                "far from it: the power seen once a scrape is not typical of the time between.",
            ),
            queries=[Query(f"sum by ({_BY}) ({energy})", _NAME)],
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
                    f"max by ({_BY}, reason) ({GPUS.rate(catalog.GPU_THROTTLED_SECONDS)})",
                    "GPU {{gpu}} {{reason}}",
                )
            ],
            unit="percentunit",
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
            queries=[Query(f"max by ({_BY}) ({GPUS.now(key)})", _NAME)],
            unit=unit,
            minimum=0,
            colors=palette.by_number("GPU"),
        )
    )


# --- memory and bus ----------------------------------------------------------------------------


def _memory() -> Panel:
    used = GPUS.now(catalog.GPU_MEMORY_USED_BYTES)
    return time_series(
        Figure(
            title="Memory in use",
            about=About(
                "How full is each GPU? SGLang takes its pool at the start, so this says nothing "
                "about requests; the KV pool does.",
                "alike, and constant after the start.",
                "growth while it serves is a leak; one lower: another layer split.",
            ),
            queries=[Query(f"max by ({_BY}) ({used})", _NAME)],
            unit="bytes",
            minimum=0,
            colors=palette.by_number("GPU"),
        )
    )


def _pcie(way: str) -> Panel:
    key = catalog.GPU_PCIE_TRANSMIT_BYTES if way == "sent" else catalog.GPU_PCIE_RECEIVE_BYTES
    return time_series(
        Figure(
            title=f"PCIe, {way}",
            about=About(
                f"How much does each GPU have {way} over PCIe per second? Hidden states between "
                "stages go this way where there is no NVLink.",
                "far below what the link can carry.",
                "near the link's limit the stages wait for transfers: smaller prefill chunks, or "
                "stages that share a switch.",
            ),
            queries=[Query(f"sum by ({_BY}) ({GPUS.rate(key)})", _NAME)],
            unit="Bps",
            minimum=0,
            colors=palette.by_number("GPU"),
        )
    )


# --- errors and samples ------------------------------------------------------------------------


def _xid() -> Panel:
    return time_series(
        Figure(
            title="XID errors",
            about=About(
                "Did the driver report errors? Count since the exporter's start, by number.",
                "none.",
                "NVIDIA's list of XID errors says what each number means; 79 is a card that fell "
                "off the bus.",
            ),
            queries=[
                Query(
                    f"sum by ({_BY}, xid) (increase("
                    f"{GPUS.select(catalog.GPU_XID_ERRORS)}[$__rate_interval]))",
                    "GPU {{gpu}} XID {{xid}}",
                )
            ],
            unit="short",
            minimum=0,
            thresholds=limit("GpuXid"),
            alerts=("GpuXid",),
        )
    )


def _missed() -> Panel:
    missed = GPUS.rate(catalog.GPU_MISSED_SECONDS)
    seen = GPUS.rate(catalog.GPU_OBSERVED_SECONDS)
    by = f"{_BY}, signal"
    return time_series(
        Figure(
            title="Time that no sample covers",
            about=About(
                "Can the figures be trusted? Share of time between samples that none covers, by "
                "signal; it counts in no share.",
                "0.",
                "the driver or the exporter stood still: see calls of the driver on the Exporter "
                "health dashboard.",
            ),
            queries=[
                Query(
                    f"sum by ({by}) ({missed}) / (sum by ({by}) ({missed}) + "
                    f"sum by ({by}) ({seen}) > 0)",
                    "GPU {{gpu}} {{signal}}",
                )
            ],
            unit="percentunit",
            minimum=0,
            maximum=1,
            thresholds=limit("SamplesMissed"),
            alerts=("SamplesMissed",),
        )
    )


def _sample_age() -> Panel:
    newest = GPUS.now(catalog.GPU_LAST_SAMPLE_TIMESTAMP)
    return time_series(
        Figure(
            title="Age of the newest sample",
            about=About(
                "Is each GPU still sampled? Time since the newest sample of any signal.",
                "about a second, and the scrape interval on top.",
                "growing without end: the driver hangs, or the GPU is lost.",
            ),
            queries=[Query(f"time() - max by ({_BY}) ({newest})", _NAME)],
            unit="s",
            minimum=0,
            colors=palette.by_number("GPU"),
        )
    )
