"""What systemd is told, over a real socket: by the class alone, then by a running exporter."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from exporter import service_manager
from exporter.pipeline_model import PipelineModel
from exporter.records import (
    GpuIdentity,
    GpuState,
    ServerFacts,
    SourceHealth,
)
from exporter.service_manager import MOST_CHARACTERS, ServiceManager, status_sentence
from exporter.snapshot import Snapshot
from tests.notify_socket import NotifySocket
from tests.running import RunningExporter

T = 1_796_000_000.0


@dataclass
class Seen:
    """What the exporter sees; tests change it."""

    sources: list[SourceHealth] = field(default_factory=lambda: [SourceHealth("journal:kimi")])
    stages: int = 0
    broken: bool = False

    def healths(self) -> tuple[SourceHealth, ...]:
        return tuple(self.sources)

    def snapshot(self) -> Snapshot:
        if self.broken:
            raise ValueError("a bug")
        model = PipelineModel()
        if self.stages:
            model.fold(ServerFacts("kimi", T, {"pp_size": self.stages}, "configuration"))
        return model.snapshot(T)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # the condition is another task's, without an event
            await asyncio.sleep(0.005)


async def cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_manager, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(service_manager, "FIRST_LOOK_SECONDS", 0.005)


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
async def test_it_is_ready_once_every_source_was_opened_or_failed_to(
    tmp_path: Path, abstract: bool
) -> None:
    seen = Seen([SourceHealth("journal:kimi"), SourceHealth("nvml")])
    with NotifySocket(tmp_path, abstract=abstract) as notify:
        watching = asyncio.create_task(ServiceManager(notify.environment).watch(seen))
        seen.sources[0].up = True
        await until(lambda: notify.said("STATUS"))
        assert not notify.said("READY")
        seen.sources[1].last_error = "no driver"
        await until(lambda: notify.said("READY"))
        await cancel(watching)
        assert notify.said("READY") == ["1"]
        assert notify.read()[-1] == {"STOPPING": "1"}


async def test_a_driver_that_hangs_does_not_keep_it_from_being_ready(tmp_path: Path) -> None:
    now = 0.0
    with NotifySocket(tmp_path) as notify:
        watching = asyncio.create_task(
            ServiceManager(notify.environment, clock=lambda: now).watch(Seen())
        )
        await until(lambda: notify.said("STATUS"))
        assert not notify.said("READY")
        now = 20.0
        await until(lambda: notify.said("READY"))
        assert notify.said("STATUS")[-1].endswith("waits for journal:kimi: not opened yet")
        await cancel(watching)


async def test_the_status_is_sent_when_it_changes_and_only_then(tmp_path: Path) -> None:
    seen = Seen([SourceHealth("journal:kimi", up=True)])
    with NotifySocket(tmp_path) as notify:
        manager = ServiceManager({**notify.environment, "WATCHDOG_USEC": "10000"})
        watching = asyncio.create_task(manager.watch(seen))
        await until(lambda: len(notify.said("WATCHDOG")) > 5)
        seen.stages = 8
        looks = len(notify.said("WATCHDOG"))
        await until(lambda: len(notify.said("WATCHDOG")) > looks + 5)
        await cancel(watching)
        assert notify.said("STATUS") == [
            "sees no stage yet and no GPU",
            "sees 8 stages of kimi and no GPU",
        ]


@pytest.mark.parametrize(
    ("environment", "alive"),
    [
        ({}, False),
        ({"WATCHDOG_USEC": "10000"}, True),
        ({"WATCHDOG_USEC": "10000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "10000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({"WATCHDOG_USEC": "soon"}, False),
        ({"WATCHDOG_USEC": "9" * 5000}, False),
    ],
    ids=["unwatched", "watched", "watched by name", "another is", "zero", "no number", "too long"],
)
async def test_it_gives_signs_of_life_where_the_watchdog_means_it(
    tmp_path: Path, environment: dict[str, str], alive: bool
) -> None:
    seen = Seen([SourceHealth("journal:kimi", up=True)])
    with NotifySocket(tmp_path) as notify:
        manager = ServiceManager({**notify.environment, **environment})
        watching = asyncio.create_task(manager.watch(seen))
        for stages in (1, 2, 3):
            seen.stages = stages
            await until(lambda: len(notify.said("STATUS")) >= seen.stages)  # at once
        await cancel(watching)
        assert bool(notify.said("WATCHDOG")) == alive


async def test_a_reload_is_told_with_its_instant_and_ends_ready_even_if_it_fails(
    tmp_path: Path,
) -> None:
    with NotifySocket(tmp_path) as notify:
        manager = ServiceManager(notify.environment, clock=lambda: 12.5)
        with manager.reloading():
            pass
        assert not notify.read(), "it was not ready before"
        watching = asyncio.create_task(manager.watch(Seen([SourceHealth("nvml", up=True)])))
        await until(lambda: notify.said("READY"))
        notify.messages.clear()
        with pytest.raises(OSError, match="gone"), manager.reloading():  # noqa: PT012  # the body is the point
            assert notify.read() == [{"RELOADING": "1", "MONOTONIC_USEC": "12500000"}]
            raise OSError("gone")
        assert notify.read()[-1] == {"READY": "1"}
        await cancel(watching)


async def test_what_could_not_be_sent_is_sent_when_somebody_listens(tmp_path: Path) -> None:
    seen = Seen([SourceHealth("nvml", up=True)])
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    watching = asyncio.create_task(ServiceManager(environment).watch(seen))
    await asyncio.sleep(0)
    with NotifySocket(tmp_path) as notify:
        await until(lambda: notify.said("READY"))
        assert notify.said("STATUS") == ["sees no stage yet and no GPU"]
        await cancel(watching)


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "notify"])
async def test_nobody_is_told_where_nobody_asks_in_a_way_known_here(address: str) -> None:
    seen = Seen(broken=True)  # nor is anything looked at
    manager = ServiceManager({"NOTIFY_SOCKET": address})
    watching = asyncio.create_task(manager.watch(seen))
    await asyncio.sleep(0)
    with manager.reloading():
        assert not watching.done()
    await cancel(watching)
    assert watching.cancelled()


async def test_a_bug_in_the_model_costs_the_sentence_and_not_the_sign_of_life(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen([SourceHealth("nvml", up=True)], broken=True)
    with NotifySocket(tmp_path) as notify:
        manager = ServiceManager({**notify.environment, "WATCHDOG_USEC": "10000"})
        with caplog.at_level(logging.ERROR):
            watching = asyncio.create_task(manager.watch(seen))
            await until(lambda: len(notify.said("WATCHDOG")) > 3)
        await cancel(watching)
        assert notify.said("STATUS") == ["what it sees is unknown; see its log"]
        assert len(caplog.records) == 1


def test_the_sentence_names_stages_gpus_and_what_is_waited_for() -> None:
    model = PipelineModel()
    for name, size in (("kimi", 8), ("small", 1)):
        model.fold(ServerFacts(name, T, {"pp_size": size}, "configuration"))
    for gpu in range(8):
        model.fold(GpuIdentity(gpu, f"GPU-{gpu}"))
        model.fold(GpuState(gpu, T, up=gpu != 3))
    healths = [
        SourceHealth("journal:kimi", up=True),
        SourceHealth("journal:small", up=True, last_error="no entry of unit small.service yet"),
        SourceHealth("server:kimi", last_error="connection refused"),
    ]
    assert status_sentence(model.snapshot(T), healths) == (
        "sees 8 stages of kimi, 1 stage of small and 7 of 8 GPUs; journal:small: no entry of unit "
        "small.service yet; waits for server:kimi: connection refused"
    )


def test_the_sentence_is_one_printable_line_of_bounded_length() -> None:
    hostile = "\x1b]0;title\x07\nREADY=1\u2028\u202e\udcff" + "ä" * 9_000
    sentence = status_sentence(Seen().snapshot(), [SourceHealth("files:x", last_error=hostile)])
    assert sentence.isprintable()
    assert len(sentence) == MOST_CHARACTERS
    assert len(sentence.encode()) < 4096


# --- a running exporter --------------------------------------------------------------------------


def test_a_running_exporter_tells_ready_its_life_what_it_sees_and_its_end(tmp_path: Path) -> None:
    line = (
        "[2026-11-30 08:50:26 PP1] Decode batch, #running-req: 4, #token: 53, token usage: 0.10, "
        "cuda graph: True, gen throughput (token/s): 8.16, #queue-req: 0"
    )
    with NotifySocket(tmp_path) as notify:
        environment = {**notify.environment, "WATCHDOG_USEC": "400000"}
        with RunningExporter(["serve", "--stdin", "--no-nvml"], tmp_path, environment) as running:
            running.wait_until(lambda: notify.said("READY"))
            assert running.get("/-/ready").status == 200
            running.feed(line)
            running.wait_until(lambda: "sees 1 stage of sglang and no GPU" in notify.said("STATUS"))
            alive = len(notify.said("WATCHDOG"))
            running.wait_until(lambda: len(notify.said("WATCHDOG")) > alive + 2)
            assert running.terminate() == 0
        assert notify.said("READY") == ["1"]
        assert notify.read()[-1] == {"STOPPING": "1"}
