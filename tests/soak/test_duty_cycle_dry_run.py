"""The measurement script works without a GPU, against the fake driver's exact rhythms."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.duty_cycle_truth import PATTERNS

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_a_dry_run_of_the_duty_cycle_measurement_finds_the_true_shares(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.h200_duty_cycle", "--dry-run", "--seconds=7"]
    subprocess.run([*command, f"--output={tmp_path}"], cwd=ROOT, check=True)
    results = json.loads((tmp_path / "results.json").read_text())
    assert len(results["patterns"]) == len(PATTERNS)
    assert all(pattern["window_exact"] for pattern in results["patterns"])
    assert results["mean_absolute_errors"]["exporter"] < 0.003
    assert results["exporter"]["nvml_errors"] == {}
    assert results["exporter"]["gpm_answered"]
