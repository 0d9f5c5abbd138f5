"""A real H200 under six known mixes of waiting, work and idleness; nothing is given, all learned.

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


@pytest.fixture(name="truths", scope="module")
def fixture_truths(tmp_path_factory: pytest.TempPathFactory) -> list[Truth]:
    path = tmp_path_factory.mktemp("mixes") / "truth.jsonl"
    path.write_bytes(gzip.decompress((DATA / "truth.jsonl.gz").read_bytes()))
    return read_truths(path)


@pytest.fixture(name="said", scope="module", params=WAYS)
def fixture_said(request: pytest.FixtureRequest) -> tuple[str, list[ActivityWindow]]:
    return request.param, estimate(DATA / "recording.jsonl.gz", WAYS[request.param][0])


def test_all_six_mixes_are_there(truths: list[Truth]) -> None:
    assert [truth.mix for truth in truths] == list(MIX_SETS["first"])


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
