"""Fifty runs of the exporter's lives beside a busy journal, with a table."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.journal_lives import Toll
from tests.scenarios.test_no_line_is_lost import pytestmark as needs_journal
from tests.scenarios.test_no_line_is_lost import run_lives

pytestmark = [needs_journal, pytest.mark.soak, pytest.mark.timeout(3600)]

RUNS = 50
COLUMNS = ("lives", "cut", "lines", "gaps", "vanished", "unseen", "lost", "doubled")


def row(toll: Toll) -> list[int]:
    return [getattr(toll, column) for column in COLUMNS]


def test_fifty_runs_of_killed_lives_neither_lose_nor_double_a_line(tmp_path: Path) -> None:
    """Seeds are new each time; the table names them."""
    seeds = random.SystemRandom().sample(range(2**31), RUNS)
    print(f"\n{'seed':>12}" + "".join(f"{column:>10}" for column in COLUMNS))
    rows = []
    for seed in seeds:
        folder = tmp_path / str(seed)
        folder.mkdir()
        rows.append(row(run_lives(folder, seed)))
        print(f"{seed:>12}" + "".join(f"{figure:>10,}" for figure in rows[-1]), flush=True)
    sums = [sum(column) for column in zip(*rows, strict=True)]
    print(f"{'sum':>12}" + "".join(f"{figure:>10,}" for figure in sums))
    assert sums[-2:] == [0, 0]
