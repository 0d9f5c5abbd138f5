"""Random servers of every class, seen in every way: named, left open, never confidently wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from exporter.diagnose.outcome import diagnose_recording
from exporter.diagnosis.findings import CONFIDENT, Verdict
from exporter.diagnosis.verdict import Diagnosis
from exporter.simulator.scenarios import Scenario
from tests.random_servers import CLASSES, SECONDS, is_right, server
from tests.recording_ways import WAYS, kept
from tests.simulated_recording import write_recording

SEEDS = range(700, 720)
SEEN_IN_FULL = ("everything", "power, levels", "gpm, levels", "no load")
"""Ways that leave out nothing that decides: the working shares, and the requests or their beginning."""
LEAST_RIGHT = 0.95

RIGHT, UNSURE = "right", "right, unsure"
OPEN, OPEN_WITHOUT = "open, says what is missing", "open, does not"
WRONG_UNSURE, WRONG = "wrong, unsure", "wrong"

Found = defaultdict[tuple[str, str], Counter[str]]


def outcome(diagnosis: Diagnosis, scenario: Scenario, way: str) -> str:
    if diagnosis.verdict is Verdict.CANNOT_TELL:
        return OPEN if set(diagnosis.missing) & set(WAYS[way].lacks) else OPEN_WITHOUT
    sure = diagnosis.confidence >= CONFIDENT
    if is_right(diagnosis, scenario):
        return RIGHT if sure else UNSURE
    return WRONG if sure else WRONG_UNSURE


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_no_random_server_is_confidently_misjudged(tmp_path: Path) -> None:
    found: Found = defaultdict(Counter)
    wrong = []
    for truth in CLASSES:
        for seed in SEEDS:
            scenario, whole = server(truth, seed), tmp_path / "whole.jsonl"
            write_recording(scenario, SECONDS, whole, seed=seed, levels=True)
            for way in WAYS:
                diagnosis = diagnose_recording(kept(whole, tmp_path / "kept.jsonl", way)).diagnosis
                said = outcome(diagnosis, scenario, way)
                found[way, truth][said] += 1
                if said in {WRONG, WRONG_UNSURE, OPEN_WITHOUT}:
                    print(f"{said}: {truth} {seed}, {way}: {diagnosis.verdict}")
                if said == WRONG:
                    wrong.append((truth, seed, way, diagnosis.verdict, diagnosis.confidence))
    print_table(found)
    assert not wrong
    for way in WAYS:
        total = sum((found[way, truth] for truth in CLASSES), Counter[str]())
        good = total[RIGHT] + total[UNSURE] + (0 if way in SEEN_IN_FULL else total[OPEN])
        assert good >= LEAST_RIGHT * total.total(), way


def print_table(found: Found) -> None:
    """A row a class and way of looking, figures in the order of the head."""
    kinds = (RIGHT, UNSURE, OPEN, OPEN_WITHOUT, WRONG_UNSURE, WRONG)
    print("\n" + " / ".join(kinds))
    print("| class | " + " | ".join(WAYS) + " |")
    print("|---" * (len(WAYS) + 1) + "|")
    for truth in CLASSES:
        cells = (" / ".join(str(found[way, truth][kind]) for kind in kinds) for way in WAYS)
        print(f"| {truth} | " + " | ".join(cells) + " |")
    sums = (sum((found[way, truth] for truth in CLASSES), Counter[str]()) for way in WAYS)
    print("| all | " + " | ".join(" / ".join(str(s[k]) for k in kinds) for s in sums) + " |")
