"""Ways of looking at a server: recordings of it with parts left out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from exporter.diagnosis.findings import Missing
from exporter.simulator.scenarios import Scenario
from tests.random_servers import SECONDS
from tests.simulated_recording import write_recording


@dataclass(frozen=True, slots=True)
class Way:
    """What is left out of a recording, and what a diagnosis then has to say is missing."""

    left_out: tuple[str, ...] = ()
    """Types of lines."""
    joined_after_seconds: float = 0.0
    """Nothing is seen of the time before."""
    lacks: tuple[Missing, ...] = ()
    """What could be known with what is left out."""


_LATE_SECONDS = 12.0

WAYS: dict[str, Way] = {
    "everything": Way(),
    "no levels": Way(("levels",), lacks=(Missing.WORKING,)),
    "power, levels": Way(("gpm",), lacks=(Missing.WORKING,)),
    "gpm, levels": Way(("power",), lacks=(Missing.WORKING,)),
    "residency alone": Way(("gpm", "power", "levels", "gauges"), lacks=(Missing.WORKING,)),
    "no load": Way(("load",), lacks=(Missing.SLOTS,)),
    "no load, no levels": Way(("load", "levels"), lacks=(Missing.SLOTS, Missing.WORKING)),
    "no load, joined late": Way(("load",), _LATE_SECONDS, (Missing.SLOTS,)),
    "log alone": Way(
        ("gpm", "power", "levels", "gauges", "util", "gpu", "map"),
        lacks=(Missing.GPUS, Missing.WORKING),
    ),
}
"""By name."""


def written(
    scenario: Scenario, folder: Path, way: str, *, seed: int, seconds: float = SECONDS
) -> Path:
    """A recording of the scenario as that way shows it."""
    whole = folder / "whole.jsonl"
    levels = "levels" not in WAYS[way].left_out
    write_recording(scenario, seconds, whole, seed=seed, levels=levels)
    return kept(whole, folder / "kept.jsonl", way)


def kept(whole: Path, path: Path, way: str) -> Path:
    """Writes what a way shows of a whole recording."""
    left_out, late = set(WAYS[way].left_out), WAYS[way].joined_after_seconds
    first_at: float | None = None
    with whole.open() as lines, path.open("w") as file:
        for line in lines:
            record = json.loads(line)
            at = record.get("end", record.get("t"))
            first_at = at if first_at is None else first_at
            seen = at is None or first_at is None or at >= first_at + late
            if seen and record["type"] not in left_out:
                file.write(line)
    return path
