"""Writes the dashboards' JSON from the code, or says which are stale.

python -m grafana.build_dashboards [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana import compare, gpu, health, occupancy

FOLDER: Final = Path(__file__).parent / "dashboards"
DASHBOARDS: Final = (occupancy, compare, gpu, health)


def built() -> dict[str, str]:
    """File name → JSON of every dashboard, the same for the same code."""
    return {
        f"{module.UID}.json": json.dumps(module.build(), cls=JSONEncoder, indent=2) + "\n"
        for module in DASHBOARDS
    }


def stale(folder: Path = FOLDER) -> list[str]:
    """Names of files that differ from what the code builds, are missing or are left over."""
    there = {path.name: path.read_text() for path in folder.glob("*.json")}
    wanted = built()
    return sorted(
        name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name)
    )


def main(arguments: list[str] | None = None) -> int:
    """Writes, or with `--check` compares; 1 if something is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if stale")
    if parser.parse_args(arguments).check:
        found = stale()
        for name in found:
            sys.stderr.write(f"{FOLDER / name} is stale: run make dashboards\n")
        return 1 if found else 0
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for name, text in built().items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
