"""Random servers of every class, seen in every way: named, left open, never confidently wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from exporter.diagnose import diagnose_recording
from exporter.diagnosis.findings import CONFIDENT, Verdict
from tests.random_servers import CLASSES, SECONDS, accepted, server
from tests.recording_ways import WAYS, kept
from tests.simulated_recording import write_recording

SEEDS = range(200, 220)
FULLY_SEEN = ("everything",)
LEAST_RIGHT = 0.95


def outcome(verdict: Verdict, confidence: float, truth: str) -> str:
    if verdict in accepted(truth):
        return "right" if confidence >= CONFIDENT else "right, unsure"
    if verdict is Verdict.CANNOT_TELL:
        return "left open"
    return "wrong" if confidence >= CONFIDENT else "wrong, unsure"


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_random_server_is_confidently_misjudged(tmp_path: Path) -> None:
    found: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    failures = []
    for truth in CLASSES:
        for seed in SEEDS:
            whole = tmp_path / "whole.jsonl"
            write_recording(server(truth, seed), SECONDS, whole, seed=seed, levels=True)
            for way in WAYS:
                diagnosis = diagnose_recording(kept(whole, tmp_path / "kept.jsonl", way)).diagnosis
                said = outcome(diagnosis.verdict, diagnosis.confidence, truth)
                found[way, truth][said] += 1
                if said == "wrong":
                    failures.append((truth, seed, way, diagnosis.verdict, diagnosis.confidence))
    print_table(found)
    assert not failures
    for way in FULLY_SEEN:
        right = sum(found[way, t]["right"] + found[way, t]["right, unsure"] for t in CLASSES)
        assert right >= LEAST_RIGHT * len(SEEDS) * len(CLASSES)


def print_table(found: dict[tuple[str, str], Counter[str]]) -> None:
    """A row a class: right / right but unsure / left open / wrong but unsure / wrong."""
    kinds = ("right", "right, unsure", "left open", "wrong, unsure", "wrong")
    print("\n| class | " + " | ".join(WAYS) + " |")
    print("|---" * (len(WAYS) + 1) + "|")
    for truth in CLASSES:
        cells = (" / ".join(str(found[way, truth][kind]) for kind in kinds) for way in WAYS)
        print(f"| {truth} | " + " | ".join(cells) + " |")
    sums = (sum((found[way, truth] for truth in CLASSES), Counter()) for way in WAYS)
    print("| all | " + " | ".join(" / ".join(str(s[k]) for k in kinds) for s in sums) + " |")
