"""The repository's rules with their times shortened, so that alerts can be watched live.

Derived from the files that are deployed, and from nothing else: every range, offset and `for` is
divided by `HURRY`; expressions, thresholds, labels and texts stay. Ranges keep a floor, because
the exporter settles its counters some seconds late and scrapes are a second apart.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import promql_parser
import yaml

HURRY = 30
"""10 minutes become 20 seconds."""
SHORTEST_RANGE_SECONDS = 15
DEPLOYED = Path(__file__).parents[1] / "deploy" / "prometheus"

_RANGE_OR_OFFSET = re.compile(r"(?<=\[)[0-9]+[smhd](?=\])|(?<=\boffset )[0-9]+[smhd]\b")


def seconds(duration: str) -> int:
    """A duration as Prometheus writes it, `10m`."""
    return int(promql_parser.parse_duration(duration).total_seconds())


def deployed_groups(path: Path) -> list[dict[str, Any]]:
    """The groups of a rule file."""
    return list(yaml.safe_load(path.read_text())["groups"])


def hurried_rule(rule: dict[str, Any]) -> dict[str, Any]:
    """The same rule in a hurry."""
    hurried = {**rule, "expr": _RANGE_OR_OFFSET.sub(_shorter_range, rule["expr"])}
    if "for" in rule:
        hurried["for"] = f"{seconds(rule['for']) // HURRY}s"
    return hurried


def write_hurried_rules(folder: Path) -> list[Path]:
    """Writes all rule files of the repository, hurried, into an existing folder."""
    written = []
    for path in sorted(DEPLOYED.glob("*.rules.yaml")):
        groups = deployed_groups(path)
        for group in groups:
            group["rules"] = [hurried_rule(rule) for rule in group["rules"]]
        written.append(folder / path.name)
        written[-1].write_text(yaml.safe_dump({"groups": groups}))
    return written


def _shorter_range(found: re.Match[str]) -> str:
    return f"{max(seconds(found[0]) // HURRY, SHORTEST_RANGE_SECONDS)}s"
