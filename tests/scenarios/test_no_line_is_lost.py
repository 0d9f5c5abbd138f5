"""Every line counts once over all lives of the exporter, as the journal itself counts them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.journal_lives import BusyServer, Lives, Toll
from tests.journal_writer import JournalWriter, journal_remote

pytestmark = pytest.mark.skipif(
    journal_remote() is None, reason="systemd-journal-remote is not installed"
)


def run_lives(folder: Path, seed: int, lives: int = 5) -> Toll:
    folder.mkdir(exist_ok=True)
    with JournalWriter(folder / "journal") as writer, BusyServer(writer, seed) as server:
        run = Lives(folder, server, random.Random(seed))
        run.begin()
        for _ in range(lives):
            run.live()
            run.disturb()
        return run.end()


@pytest.mark.parametrize("seed", range(1, 6))
def test_killed_and_started_again_at_random_moments_no_line_is_lost_or_doubled(
    tmp_path: Path, seed: int
) -> None:
    toll = run_lives(tmp_path, seed)
    print(toll)
    assert toll.counted == toll.expected
    assert toll.lines > 0
