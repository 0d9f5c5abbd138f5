"""The simulated host as the sources meet it: a journal, a text log, a driver, a /proc."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from exporter.gpu_driver import GpuDriver
from exporter.records import Signal
from exporter.simulator import log_writers
from exporter.simulator.demo_server import DemoServer
from exporter.simulator.log_writers import JournalWriter, TextWriter, find_journal_remote
from exporter.simulator.noise import PROMPT
from exporter.simulator.processes import MAIN, SCHEDULERS, Process
from exporter.simulator.scenarios import STAGES
from exporter.simulator.server_log import LogEntry

PATIENCE_SECONDS = 60.0
needs_journal = pytest.mark.skipif(
    find_journal_remote() is None, reason="systemd-journal-remote is not installed"
)


class JournalReading:
    """Follows a folder of journal files and keeps what it saw."""

    def __init__(self, directory: Path) -> None:
        journal = pytest.importorskip("systemd.journal")
        self._reader = journal.Reader(path=str(directory))
        self._reader.fileno()
        self.entries: list[dict[str, object]] = []

    def drain(self) -> list[dict[str, object]]:
        self._reader.process()
        while entry := self._reader.get_next():
            self.entries.append(entry)
        return self.entries

    async def until(self, enough: Callable[[list[dict[str, object]]], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not enough(self.drain()):
            assert time.monotonic() < deadline, f"{len(self.entries)} entries came"
            await asyncio.sleep(0.01)

    def close(self) -> None:
        self._reader.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[DemoServer]:
    demo = DemoServer("healthy", tmp_path)
    yield demo
    await demo.close()


def entry(number: int, message: str, process: Process = MAIN) -> LogEntry:
    return LogEntry(1_796_032_800.0 + number, number, process, message)


def test_an_unknown_scenario_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="healthy, thundering_herd"):
        DemoServer("wonderful", tmp_path)


def test_the_proc_folder_names_each_rank(tmp_path: Path) -> None:
    demo = DemoServer("idle", tmp_path, text_log=True)
    for rank in range(STAGES):
        ((pid, _),) = demo.driver.processes(rank)
        title = (demo.proc_root / str(pid) / "cmdline").read_bytes()
        assert title == f"sglang::scheduler_PP{rank}\0".encode()


def test_the_driver_is_a_gpu_driver(tmp_path: Path) -> None:
    driver: GpuDriver = DemoServer("idle", tmp_path, text_log=True).driver
    assert driver.count() == STAGES


async def test_without_a_journal_the_log_is_a_text_file(tmp_path: Path) -> None:
    demo = DemoServer("idle", tmp_path, text_log=True)
    assert demo.journal_directory is None
    assert demo.log_file is not None
    await demo.open()
    await demo.close()
    await demo.close()
    text = demo.log_file.read_text()
    assert text.count("PP7] max_total_num_tokens=") == 1
    assert text.endswith("The server is fired up and ready to roll!\n")


async def test_a_text_file_holds_no_forged_batch_that_nothing_could_tell(tmp_path: Path) -> None:
    now = 1_796_032_800.0
    demo = DemoServer("healthy", tmp_path, text_log=True, clock=lambda: now)
    await demo.open()
    for _ in range(60):
        now += 2.0
        await demo._writer.write(demo.simulation.advance(now))
    await demo.close()
    assert demo.log_file is not None
    lines = demo.log_file.read_text().split("\n")
    assert any(PROMPT in line for line in lines)
    assert not any(
        line.startswith("[") and "] Decode batch, #running-req: 999" in line[:60] for line in lines
    )


async def test_the_text_file_is_rotated_by_renaming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writers, "_TEXT_BYTES_PER_FILE", 100)
    writer = TextWriter(tmp_path / "sglang.log")
    for number in range(9):
        await writer.write([entry(number, "x" * 60)])
    await writer.close()
    sizes = {name: (tmp_path / name).stat().st_size for name in os.listdir(tmp_path)}
    assert sizes == {"sglang.log": 61, "sglang.log.1": 122}


@needs_journal
async def test_a_running_server_shows_all_stages_in_its_journal(server: DemoServer) -> None:
    assert server.log_file is None
    assert server.journal_directory is not None
    await server.open()
    living = asyncio.create_task(server.run())
    reading = JournalReading(server.journal_directory)

    def all_stages(entries: list[dict[str, object]]) -> bool:
        return {
            each["_CMDLINE"] for each in entries if "] Decode batch" in str(each["MESSAGE"])
        } >= {scheduler.title for scheduler in SCHEDULERS}

    await reading.until(all_stages)
    reading.close()
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    for each in reading.entries:
        assert each["_SYSTEMD_UNIT"] == server.unit
        assert each["_TRANSPORT"] == "stdout"
        assert each["_SYSTEMD_INVOCATION_ID"] == reading.entries[0]["_SYSTEMD_INVOCATION_ID"]


@needs_journal
async def test_every_entry_arrives_once_in_order_and_unchanged(tmp_path: Path) -> None:
    program = find_journal_remote()
    assert program is not None
    writer = JournalWriter(program, tmp_path, 1_796_032_800.0)
    texts = ["plain", "\x1b[1mcolors\x1b[0m", "two\nlines", "a=b", "U+2028 \u2028 inside", "ü"]
    await writer.write([entry(number, text) for number, text in enumerate(texts)])
    await writer.close()
    reading = JournalReading(tmp_path)
    await reading.until(lambda entries: len(entries) >= len(texts))
    reading.close()
    assert [each["MESSAGE"] for each in reading.entries] == texts


@needs_journal
async def test_a_journal_writer_that_dies_is_reported_once_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writers, "_RESTART_SECONDS", 0.0)
    program = find_journal_remote()
    assert program is not None
    writer = JournalWriter(program, tmp_path, 1_796_032_800.0)
    reading = JournalReading(tmp_path)
    await writer.write([entry(0, "before")])
    await reading.until(lambda entries: len(entries) == 1)
    process = writer._process
    assert process is not None
    process.kill()
    await process.wait()
    with caplog.at_level(logging.WARNING):
        for number in range(1, 4):
            await writer.write([entry(number, "after")])
    await reading.until(lambda entries: len(entries) == 4)
    reading.close()
    await writer.close()
    assert [record.message for record in caplog.records] == [
        "systemd-journal-remote ended code=-9; starting it again"
    ]


@needs_journal
async def test_a_program_that_cannot_start_costs_only_the_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = JournalWriter(tmp_path / "missing", tmp_path, 1_796_032_800.0)
    with caplog.at_level(logging.WARNING):
        await writer.write([entry(0, "lost")])
        await writer.write([entry(1, "lost")])
    await writer.close()
    assert len(caplog.records) == 1


@needs_journal
async def test_old_journal_files_go_and_a_reader_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writers, "_ENTRIES_PER_FILE", 10)
    monkeypatch.setattr(log_writers, "_RESTART_SECONDS", 0.0)
    program = find_journal_remote()
    assert program is not None
    writer = JournalWriter(program, tmp_path, 1_796_032_800.0)
    reading = JournalReading(tmp_path)
    for number in range(50):
        await writer.write([entry(number, f"line {number}")])
        await reading.until(lambda entries, number=number: len(entries) == number + 1)  # type: ignore[misc]  # bound here
    reading.close()
    await writer.close()
    assert [each["MESSAGE"] for each in reading.entries] == [f"line {n}" for n in range(50)]
    assert sorted(os.listdir(tmp_path)) == [
        "demo-000004.journal",
        "demo-000005.journal",
    ]


def test_the_driver_may_be_asked_from_another_thread_meanwhile(tmp_path: Path) -> None:
    demo = DemoServer("healthy", tmp_path, text_log=True, clock=lambda: 1_796_032_800.0)
    simulation, driver = demo.simulation, demo.driver
    failures: list[BaseException] = []
    done = threading.Event()

    def ask() -> None:
        newest_us = 0
        try:
            while not done.is_set():
                for at_us, _ in driver.ring(3, Signal.POWER, newest_us).samples:
                    assert at_us > newest_us
                    newest_us = at_us
                driver.energy_joules(3)
                driver.utilization(3)
        except BaseException as failure:  # noqa: BLE001 - shown by the main thread
            failures.append(failure)

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(200):
        simulation.advance(simulation.now + 0.1)
    done.set()
    asking.join()
    assert failures == []
