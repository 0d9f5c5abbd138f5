"""Ways of looking at a server: recordings of it with parts left out."""

from __future__ import annotations

import json
from pathlib import Path

from exporter.simulator.scenarios import Scenario
from tests.random_servers import SECONDS
from tests.simulated_recording import write_recording

WAYS: dict[str, tuple[str, ...]] = {
    "everything": (),
    "no levels": ("levels",),
    "power, levels": ("gpm",),
    "gpm, levels": ("power",),
    "residency alone": ("gpm", "power", "levels"),
    "no load": ("load",),
    "no load, no levels": ("load", "levels"),
    "log alone": ("gpm", "power", "levels", "util", "gpu", "map"),
}
"""By name: the types of lines left out."""


def written(
    scenario: Scenario, folder: Path, way: str, *, seed: int, seconds: float = SECONDS
) -> Path:
    """A recording of the scenario as that way shows it."""
    whole = folder / "whole.jsonl"
    write_recording(scenario, seconds, whole, seed=seed, levels="levels" not in WAYS[way])
    return kept(whole, folder / "kept.jsonl", way)


def kept(whole: Path, path: Path, way: str) -> Path:
    """Writes what a way shows of a whole recording."""
    left_out = set(WAYS[way])
    with whole.open() as lines, path.open("w") as file:
        file.writelines(line for line in lines if json.loads(line)["type"] not in left_out)
    return path
