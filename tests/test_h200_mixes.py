"""A real H200 under known mixes of waiting, work and idleness; nothing is given, all is learned.

tests/data/h200/activity_mixes was made by bench/h200_activity.py.
"""

import gzip
from pathlib import Path

import pytest

from bench.activity_mixes import MIX_SETS, Truth, read_truths
from bench.h200_activity import WAYS, estimate, row
from exporter.records import ActivityWindow, Method

DATA = Path(__file__).parent / "data" / "h200" / "activity_mixes"
LEARNED = ("everything", "power + ring")


@pytest.fixture(name="mixes", scope="module", params=MIX_SETS)
def fixture_mixes(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(name="truths", scope="module")
def fixture_truths(mixes: str, tmp_path_factory: pytest.TempPathFactory) -> list[Truth]:
    path = tmp_path_factory.mktemp(mixes) / "truth.jsonl"
    path.write_bytes(gzip.decompress((DATA / mixes / "truth.jsonl.gz").read_bytes()))
    return read_truths(path)


@pytest.fixture(name="said", scope="module", params=WAYS)
def fixture_said(mixes: str, request: pytest.FixtureRequest) -> tuple[str, list[ActivityWindow]]:
    windows = estimate(DATA / mixes / "recording.jsonl.gz", WAYS[request.param][0])
    return request.param, windows


def test_all_six_mixes_are_there(mixes: str, truths: list[Truth]) -> None:
    assert [truth.mix for truth in truths] == list(MIX_SETS[mixes])


def test_shares_are_true_or_called_an_upper_bound(
    truths: list[Truth], said: tuple[str, list[ActivityWindow]]
) -> None:
    way, windows = said
    for truth in truths:
        found = row(way, truth, windows)
        assert found is not None
        if way in LEARNED:
            assert found.worst <= WAYS[way][1], found
        else:
            assert set(found.methods) == {Method.RESIDENCY}
            assert found.working >= found.true_working


def test_with_gpm_most_of_the_time_is_told_by_it(
    truths: list[Truth], said: tuple[str, list[ActivityWindow]]
) -> None:
    way, windows = said
    seconds = sum(w.ended_at - w.started_at for w in windows if w.started_at > truths[0].began_at)
    by_gpm = sum(w.ended_at - w.started_at for w in windows if w.method is Method.GPM)
    assert (by_gpm > 0.5 * seconds) == (way == "everything")
