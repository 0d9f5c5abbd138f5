"""Reloads: which are made, what they answer, what is said of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter import reload as reload_module
from exporter.config import Config, load
from exporter.crashes import Crashes
from exporter.records import ConfigHealth
from exporter.reload import NO_FILE, ConfigSource, Reloader

GOOD = "servers: [{name: a, files: [/a]}]\n"
OTHER = "servers: [{name: b, files: [/b]}]\n"
BAD = "servers: [{x: a}]\nlisten: 5\n"


class Rig:
    """A reloader, its file, and what it put in force."""

    def __init__(self, path: Path, *, with_file: bool = True, is_named: bool = False) -> None:
        self.path = path
        self.health, self.crashes = ConfigHealth(), Crashes()
        self.taken: list[Config] = []
        self.attempts = 0
        self.has_read = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.breaks: Exception | None = None
        if with_file:
            path.write_text(GOOD)
            config = load(path)
        else:
            config = Config(servers=())
        self.reloader = Reloader(
            ConfigSource(path if with_file or is_named else None, lambda: load(path)),
            config,
            self._take,
            health=self.health,
            crashes=self.crashes,
            around=self._around,
        )

    async def _take(self, config: Config) -> None:
        self.has_read = True
        await self.gate.wait()
        if self.breaks is not None:
            raise self.breaks
        self.taken.append(config)

    @contextlib.contextmanager
    def _around(self) -> Iterator[None]:
        self.attempts += 1
        yield

    @property
    def names(self) -> list[str]:
        return [config.servers[0].name for config in self.taken]


@contextlib.asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    task = asyncio.create_task(rig.reloader.run())
    try:
        yield rig
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # the condition is another task's, without an event
            await asyncio.sleep(0.001)


@pytest.fixture(name="rig")
def fixture_rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "exporter.yaml")


@pytest.fixture
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reload_module, "LOOK_SECONDS", 0.01)


async def test_a_burst_of_signals_is_one_reload_and_one_more_for_those_during_it(rig: Rig) -> None:
    rig.path.write_text(OTHER)
    rig.gate.clear()
    for _ in range(50):
        rig.reloader.request()
    async with running(rig):
        await until(lambda: rig.has_read)
        for _ in range(50):
            rig.reloader.request()
        rig.gate.set()
        assert await rig.reloader.reload() is None
    assert (rig.attempts, rig.names) == (2, ["b"])


async def test_who_asks_during_a_reload_is_answered_by_the_next_one(rig: Rig) -> None:
    """The one that runs may have read the file before it was what the client wants in force."""
    rig.path.write_text(OTHER)
    rig.gate.clear()
    async with running(rig):
        first = asyncio.create_task(rig.reloader.reload())
        await until(lambda: rig.has_read)
        rig.path.write_text(BAD)
        second = asyncio.create_task(rig.reloader.reload())
        rig.gate.set()
        assert await first is None
        assert "unknown setting" in (await second or "")


async def test_a_bad_file_is_said_once_and_to_everyone_who_asks(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.path.write_text(BAD)
    async with running(rig):
        said = await rig.reloader.reload()
        assert said is not None
        assert len(said.split("\n")) == len(caplog.messages) == 3
        assert rig.health == replace(rig.health, newest_in_force=False)
        rig.path.write_text(GOOD)
        assert await rig.reloader.reload() is None
    assert rig.health.newest_in_force
    assert rig.taken == [], "nothing had changed"


@pytest.mark.usefixtures("_hurried")
async def test_a_file_that_changes_is_read_whichever_way_it_is_written(rig: Rig) -> None:
    folder = rig.path.parent
    async with running(rig):
        new = folder / "new"
        new.write_text(OTHER)
        new.rename(rig.path)
        await until(lambda: rig.names == ["b"])
        rig.path.write_text(GOOD)
        await until(lambda: rig.names == ["b", "a"])
        rig.path.unlink()
        await until(lambda: not rig.health.newest_in_force)
        rig.path.write_text(GOOD)
        await until(lambda: rig.health.newest_in_force)
    assert rig.names == ["b", "a"]


@pytest.mark.usefixtures("_hurried")
async def test_a_config_map_is_followed_through_its_links(tmp_path: Path) -> None:
    """Kubernetes swaps the link `..data`; the file's own link stays as it is."""
    for name, text in (("..1", GOOD), ("..2", OTHER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "exporter.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "exporter.yaml").symlink_to("..data/exporter.yaml")
    rig = Rig(tmp_path / "exporter.yaml")
    async with running(rig):
        (tmp_path / "..tmp").symlink_to("..2")
        (tmp_path / "..tmp").rename(tmp_path / "..data")
        await until(lambda: rig.names == ["b"])


@pytest.mark.usefixtures("_hurried")
async def test_a_bad_file_that_is_found_is_said_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(rig):
        for text in (BAD, BAD + "\n", BAD + "\n\n"):
            newer = rig.path.with_name("newer")
            newer.write_text(text)
            newer.replace(rig.path)  # at once: a file cut short is another mistake
            seen = rig.attempts
            await until(lambda seen=seen: rig.attempts > seen)  # type: ignore[misc]  # seen is bound here
    assert len(caplog.messages) == 3


async def test_a_pipe_in_the_place_of_the_file_keeps_nobody_waiting(rig: Rig) -> None:
    rig.path.unlink()
    os.mkfifo(rig.path)
    async with running(rig):
        assert "is a pipe" in (await rig.reloader.reload() or "")
        rig.path.unlink()
        rig.path.write_text(OTHER)
        assert await rig.reloader.reload() is None
    assert rig.names == ["b"]


async def test_a_bug_in_a_reload_is_counted_and_the_next_one_works(rig: Rig) -> None:
    rig.path.write_text(OTHER)
    rig.breaks = KeyError("a log line")
    async with running(rig):
        assert "failed unexpectedly" in (await rig.reloader.reload() or "")
        assert (rig.crashes.counts, rig.health.newest_in_force) == ({"reload": 1}, False)
        rig.breaks = None
        assert await rig.reloader.reload() is None
    assert rig.names == ["b"]


async def test_without_a_file_there_is_nothing_to_reload(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "none", with_file=False)
    async with running(rig):
        assert await rig.reloader.reload() == NO_FILE
    assert rig.health == ConfigHealth(newest_in_force=True, loaded_at=None)
    assert rig.attempts == 1, "a service manager is told all the same"


async def test_a_configuration_from_a_pipe_is_not_read_again(tmp_path: Path) -> None:
    """It would be empty, and count as a reload that failed."""
    os.mkfifo(tmp_path / "pipe")
    rig = Rig(tmp_path / "pipe", with_file=False, is_named=True)
    async with running(rig):
        assert await rig.reloader.reload() == NO_FILE
    assert rig.health == ConfigHealth(newest_in_force=True, loaded_at=None)


async def test_listen_stays_until_a_restart_and_the_rest_changes(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    rig.path.write_text(f"{OTHER}listen: :1\n")
    async with running(rig):
        assert await rig.reloader.reload() is None
        assert rig.taken[0].listen_port != 1
        assert any("listen stays" in message for message in caplog.messages)
