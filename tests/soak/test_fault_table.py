"""All faults in full, as the table of docs/measurements.md."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import Figures, Outcome
from tests.faults.table import FAULTS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]


def test_every_fault_shows_what_it_has_to(tmp_path: Path) -> None:
    """The table is printed whole, whatever fails. SOAK_FAULTS: only those with this in the name."""
    print("\n| fault | how often | expected | seen |\n|---|---|---|---|")
    failed = []
    for number, fault in enumerate(FAULTS):
        if os.environ.get("SOAK_FAULTS", "") not in fault.name:
            continue
        often = f"| {fault.name} | {fault.many:,} {fault.times} |"
        if fault.why_not is not None:
            print(f"{often} | not done: {fault.why_not} |")
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        try:
            outcome = fault.provoke(folder, fault.many)
        except AssertionError as error:
            outcome = Outcome({}, {"failed": str(error)[:200]})
        print(f"{often} {_words(outcome.expected)} | {_words(outcome.seen)} |", flush=True)
        if outcome.seen != outcome.expected:
            failed.append(fault.name)
    assert not failed


def _words(figures: Figures) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_word(value)}" for name, value in figures.items())


def _word(value: object) -> str:
    if isinstance(value, list) and len(value) > 4:
        return f"{value[0]}, {value[1]}, {value[2]}, … ({len(value)})"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
