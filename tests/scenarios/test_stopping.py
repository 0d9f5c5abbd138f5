"""SIGTERM ends the exporter cleanly, whatever is going on."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.journal_lives import decode_line
from tests.reloading import Reloadable, write_config
from tests.running import PATIENCE_SECONDS, Metrics, RunningExporter

FOR_EVER_SECONDS = 1000.0
"""Longer than any test waits."""
UNREAD_LINES = 100_000


@contextmanager
def server_that_never_answers() -> Iterator[tuple[str, threading.Event]]:
    """Its address, and whether it was asked."""
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # closed
            with connection:
                connection.recv(1)
                asked.set()
                connection.recv(1 << 16)
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=accept, name="silent")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def viewer(running: RunningExporter, *, reads: bool) -> socket.socket:
    """Somebody who watches the live page, and maybe does not read what comes."""
    connection = socket.create_connection(("127.0.0.1", running.port))
    connection.sendall(b"GET /api/v1/live HTTP/1.1\r\nHost: x\r\n\r\n")
    if reads:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    return connection


def test_everything_that_can_hang_hangs_and_a_signal_still_ends_it(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path / "nvml", 8)
    log, fifo = tmp_path / "kimi.log", tmp_path / "token"
    log.touch()
    os.mkfifo(fifo)  # whoever opens it waits for a writer
    with server_that_never_answers() as (url, asked):
        servers = [
            {"name": "kimi", "files": [str(log)], "url": url},
            {"name": "b", "files": ["/nowhere"], "url": url, "token_file": str(fifo)},
        ]
        with Reloadable(tmp_path, {"servers": servers}, env=fake.environment()) as running:
            running.wait_for(lambda seen: len(seen.matching("gpu_up")) == 8)
            calls = fake.calls("nvmlDeviceGetSamples", 3)
            fake.hang("nvmlDeviceGetSamples", FOR_EVER_SECONDS, gpu=3)
            running.wait_until(lambda: fake.calls("nvmlDeviceGetSamples", 3) > calls)
            assert asked.wait(PATIENCE_SECONDS)
            viewers = [viewer(running, reads=number % 2 == 0) for number in range(4)]
            half = socket.create_connection(("127.0.0.1", running.port))
            half.sendall(b"GET /metrics HTTP/1.1\r\n")
            with log.open("a") as file:
                file.writelines(f"{decode_line(pp % 8)}\n" for pp in range(UNREAD_LINES))
            assert running.terminate() == 0
            assert "Traceback" not in running.said
            for connection in (*viewers, half):
                connection.close()


def test_what_is_read_after_the_last_scrape_is_read_again(tmp_path: Path) -> None:
    log = tmp_path / "kimi.log"
    log.touch()
    with file_server(tmp_path, log) as running:
        write(log, 50)
        running.wait_for(lambda seen: batches(seen) == 50)
        write(log, 7)
        # The API is no scrape.
        running.wait_until(lambda: '"lines": 57' in running.get("/api/v1/pipeline").text)
        assert running.terminate() == 0
    write(log, 3)
    with file_server(tmp_path, log) as running:
        running.wait_for(lambda seen: batches(seen) == 7 + 3)
        assert running.terminate() == 0


def file_server(folder: Path, log: Path) -> RunningExporter:
    args = ["serve", f"--file={log}", "--server=kimi", "--no-nvml"]
    running = RunningExporter(args, folder)
    running.wait_for(lambda seen: seen.value("exporter_source_up", source="files:kimi") == 1)
    return running


def write(log: Path, lines: int) -> None:
    with log.open("a") as file:
        file.writelines(f"{decode_line(0)}\n" for _ in range(lines))


def batches(seen: Metrics) -> float:
    return seen.total("stage_batches_total", mode="decode")


def start(folder: Path) -> subprocess.Popen[bytes]:
    write_config(folder / "c.yaml", {"servers": [{"name": "a", "files": ["/nowhere"]}]})
    options = [f"--config={folder}/c.yaml", f"--state-file={folder}/p.json", "--no-nvml"]
    return subprocess.Popen(
        [sys.executable, "-m", "exporter", "serve", *options, "--listen=127.0.0.1:0"],
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_signal_during_the_start_ends_it_as_cleanly(tmp_path: Path, seed: int) -> None:
    """By the signal itself only while Python is not there yet; then nothing was said or made."""
    chance = random.Random(seed)
    starting = start(tmp_path)
    time.sleep(chance.uniform(0.0, 1.5))  # any moment will do
    starting.send_signal(signal.SIGTERM)
    _, said = starting.communicate(timeout=PATIENCE_SECONDS)
    assert starting.returncode == 0 or (starting.returncode, said) == (-signal.SIGTERM, b"")
    assert b"Traceback" not in said


def test_further_signals_of_any_kind_do_no_harm(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path / "nvml", 1)
    document = {"servers": [{"name": "a", "files": ["/nowhere"]}]}
    with Reloadable(tmp_path, document, env=fake.environment()) as running:
        running.wait_for(lambda seen: seen.value("gpu_up") == 1)
        calls = fake.calls("nvmlDeviceGetSamples", 0)
        fake.hang("nvmlDeviceGetSamples", FOR_EVER_SECONDS, gpu=0)  # so that ending takes a moment
        running.wait_until(lambda: fake.calls("nvmlDeviceGetSamples", 0) > calls)
        # The reload gives the GPUs back and waits a moment for the hung call.
        write_config(running.config, {**document, "nvml": False})
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            running.process.send_signal(number)
        assert running.terminate() == 0
        assert "Traceback" not in running.said
