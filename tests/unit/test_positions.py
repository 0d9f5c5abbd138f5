"""Reading positions: which one is saved when, and what a broken or shared file costs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.positions import (
    REREAD_SECONDS,
    Position,
    PositionStore,
    StateFileInUseError,
    default_path,
)

NAME = "journal:kimi"


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def at(line: int) -> dict[str, Position]:
    """Positions of a source that has read up to a line."""
    return {NAME: {"line": line}}


def saved(path: Path) -> dict[str, Position]:
    positions: dict[str, Position] = json.loads(path.read_bytes())["positions"]
    return positions


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "positions.json"


def test_the_next_life_goes_on_from_the_last_scrape(path: Path) -> None:
    store = PositionStore(path)
    store.started(NAME, {"line": 1})
    store.scraped(at(5))
    store.tick(at(9))
    store.close()
    assert PositionStore(path).position(NAME) == {"line": 5}


def test_before_any_scrape_the_start_is_saved(path: Path) -> None:
    store = PositionStore(path)
    assert store.position(NAME) is None
    store.started(NAME, {"line": 1})
    assert saved(path) == at(1)


def test_a_start_does_not_move_a_saved_position(path: Path) -> None:
    store = PositionStore(path)
    store.scraped(at(5))
    store.started(NAME, {"line": 9})
    assert saved(path) == at(5)


def test_the_file_is_written_before_scraped_returns_and_only_if_it_moved(path: Path) -> None:
    store = PositionStore(path)
    store.scraped(at(5))
    first = path.stat()
    store.scraped(at(5))
    assert path.stat().st_ino == first.st_ino
    assert path.stat().st_mtime_ns == first.st_mtime_ns
    store.scraped(at(6))
    assert saved(path) == at(6)


def test_without_scrapes_what_is_saved_follows_at_fifteen_minutes(path: Path) -> None:
    """A position is the second it was reached, so its age can be read off it."""
    clock = Clock()
    store = PositionStore(path, clock=clock)
    store.scraped(at(0))
    ages = []
    for second in range(1, 4000):
        clock.now += 1.0
        store.tick(at(second))
        ages.append(second - saved(path)[NAME]["line"] if second % 7 == 0 else 0)
    reread = [age for age in ages if age]
    assert max(reread) <= REREAD_SECONDS
    assert min(reread[200:]) >= REREAD_SECONDS - 10
    assert saved(path)[NAME]["line"] > 3000


def test_up_to_fifteen_minutes_without_a_scrape_nothing_moves(path: Path) -> None:
    clock = Clock()
    store = PositionStore(path, clock=clock)
    store.scraped(at(0))
    for second in range(1, int(REREAD_SECONDS) + 1):
        clock.now += 1.0
        store.tick(at(second))
    assert saved(path) == at(0)
    clock.now += 1.0
    store.tick(at(901))
    assert saved(path) == at(10)


def test_a_scrape_after_a_long_silence_is_saved_as_ever(path: Path) -> None:
    clock = Clock()
    store = PositionStore(path, clock=clock)
    store.scraped(at(0))
    clock.now += 5000.0
    store.tick(at(7))
    assert saved(path) == at(7)
    store.scraped(at(8))
    clock.now += 1.0
    store.tick(at(9))
    assert saved(path) == at(8)


def test_sources_that_are_not_here_keep_their_positions(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"version":1,"positions":{"files:gone":{"inode":7}},"more":1}')
    store = PositionStore(path)
    store.scraped(at(5))
    assert saved(path) == {"files:gone": {"inode": 7}, NAME: {"line": 5}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b'{"version":2,"positions":{}}',
        b'{"version":1,"positions":[]}',
        b" " * (2 << 20),
    ],
    ids=["empty", "cut", "no_text", "deep", "list", "newer", "no_mapping", "huge"],
)
def test_a_file_of_something_else_counts_as_none_and_is_named(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    store = PositionStore(path)
    assert store.position(NAME) is None
    assert f"{path} holds no reading positions" in caplog.text
    store.started(NAME, {"line": 1})
    assert saved(path) == at(1)


def test_an_entry_that_is_no_position_is_left_out(path: Path) -> None:
    path.parent.mkdir()
    path.write_text(f'{{"version":1,"positions":{{"a":3,"{NAME}":{{"line":2}}}}}}')
    store = PositionStore(path)
    assert store.position("a") is None
    assert store.position(NAME) == {"line": 2}


def test_a_second_exporter_on_the_same_file_is_told_to_use_another(path: Path) -> None:
    first = PositionStore(path)
    with pytest.raises(
        StateFileInUseError, match=r"another exporter keeps .* a `state_file` of its"
    ):
        PositionStore(path)
    first.close()
    first.close()
    PositionStore(path).close()


def test_a_killed_exporter_leaves_the_file_free_and_whole(path: Path) -> None:
    program = (
        "import os, signal, sys, pathlib\n"
        "from exporter.positions import PositionStore\n"
        "store = PositionStore(pathlib.Path(sys.argv[1]))\n"
        "store.scraped({'a': {'line': 1}})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False, timeout=60)
    assert done.returncode == -9
    assert PositionStore(path).position("a") == {"line": 1}


def test_a_place_that_cannot_be_written_costs_only_the_saving(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file stands where the directory should be: this fails for root as well."""
    (tmp_path / "state").write_text("")
    store = PositionStore(tmp_path / "state" / "positions.json")
    store.started(NAME, {"line": 1})
    store.scraped(at(5))
    store.scraped(at(6))
    store.tick(at(7))
    store.close()
    assert store.problem is not None
    assert "make its directory writable, or set `state_file`" in store.problem
    assert store.position(NAME) == {"line": 6}
    assert caplog.text.count("cannot keep reading positions") == 1


def test_saving_is_taken_up_again_when_it_works_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory in the way of the temporary file stands for a full disk."""
    caplog.set_level(logging.WARNING)
    store = PositionStore(path)
    obstacle = path.with_name("positions.json.tmp")
    obstacle.mkdir()
    store.scraped(at(5))
    assert store.problem is not None
    assert not path.exists()
    obstacle.rmdir()
    store.scraped(at(5))
    assert saved(path) == at(5)
    assert store.problem is None
    assert "saved again" in caplog.text


def test_a_source_may_change_its_position_object_afterwards(path: Path) -> None:
    store = PositionStore(path)
    position: Position = {"line": 1}
    store.scraped({NAME: position})
    position["line"] = 2
    store.scraped({NAME: position})
    assert saved(path) == at(2)


def test_no_file_is_left_beside_the_state(path: Path) -> None:
    store = PositionStore(path)
    for line in range(20):
        store.scraped(at(line))
    store.close()
    assert sorted(os.listdir(path.parent)) == ["positions.json", "positions.json.lock"]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"STATE_DIRECTORY": "/var/lib/x"}, Path("/var/lib/x/positions.json")),
        ({"STATE_DIRECTORY": "/var/lib/x:/var/lib/y"}, Path("/var/lib/x/positions.json")),
        ({"XDG_STATE_HOME": "/s"}, Path("/s/sglang-pipeline-exporter/positions.json")),
        (
            {"XDG_STATE_HOME": "relative"},
            Path.home() / ".local/state/sglang-pipeline-exporter/positions.json",
        ),
        ({}, Path.home() / ".local/state/sglang-pipeline-exporter/positions.json"),
    ],
)
def test_the_default_place_of_the_file(environment: dict[str, str], expected: Path) -> None:
    assert default_path(environment) == expected


def test_a_forgotten_source_begins_anew_and_does_not_come_back(path: Path) -> None:
    clock = Clock()
    store = PositionStore(path, clock=clock)
    store.scraped(at(5) | {"other": {"line": 1}})
    store.tick(at(6))
    store.forget([NAME])
    assert saved(path) == {"other": {"line": 1}}
    clock.now += REREAD_SECONDS + 60
    store.tick({})
    store.started(NAME, {"line": 70})
    assert store.position(NAME) == {"line": 70}
    store.close()
