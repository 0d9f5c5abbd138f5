"""`serve --file` over kills, rotation and truncation: every line counts once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.journal_lives import decode_line
from tests.running import Metrics, RunningExporter

WRAPPINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda line: line + "\n",
    "docker": lambda line: (
        json.dumps({"log": line + "\n", "stream": "stdout", "time": "2026-11-30T08:50:23.123456Z"})
        + "\n"
    ),
    "cri": lambda line: f"2026-11-30T08:50:23.123456789+00:00 stdout F {line}\n",
}


class LogFile:
    """A log that is appended to and rotated; no two batches are the same, as with time stamps."""

    def __init__(self, path: Path, wrap: Callable[[str], str]) -> None:
        self.path = path
        self.written = 0
        self._wrap = wrap
        self._rotations = 0

    def write(self, lines: int) -> None:
        with self.path.open("a") as file:
            for _ in range(lines):
                self.written += 1
                file.write(self._wrap(decode_line(0, queued=self.written)))
                file.write(self._wrap('INFO: 127.0.0.1 - "GET /health"'))

    def rename(self) -> None:
        self._rotations += 1
        self.path.rename(self.path.with_suffix(f".log.{self._rotations}"))

    def copy_and_truncate(self) -> None:
        self._rotations += 1
        shutil.copy(self.path, self.path.with_suffix(f".log.{self._rotations}"))
        with self.path.open("r+b") as file:
            file.truncate()


def serve(log: LogFile, *options: str) -> RunningExporter:
    args = ["serve", f"--file={log.path}", "--no-nvml", *options]
    exporter = RunningExporter(args, log.path.parent)
    exporter.wait_for(lambda shown: shown.value("exporter_source_up", source="files:sglang"))
    return exporter


def batches(metrics: Metrics) -> float:
    return metrics.total("stage_batches_total")


def read_all(exporter: RunningExporter, expected: int) -> Metrics:
    return exporter.wait_for(lambda shown: batches(shown) >= expected)


@pytest.fixture(params=WRAPPINGS.values(), ids=WRAPPINGS.keys())
def log(request: pytest.FixtureRequest, tmp_path: Path) -> LogFile:
    return LogFile(tmp_path / "sglang.log", request.param)


@pytest.mark.parametrize("rotate", [LogFile.rename, LogFile.copy_and_truncate])
def test_lines_count_once_over_rotations_and_kills(
    log: LogFile, rotate: Callable[[LogFile], None]
) -> None:
    log.write(5)
    with serve(log) as exporter:
        log.write(3)
        read_all(exporter, 3)
        rotate(log)
        log.write(4)
        assert batches(read_all(exporter, 7)) == 7
        log.write(2)
        exporter.kill()
    log.write(6)
    rotate(log)
    log.write(1)
    with serve(log) as exporter:
        shown = read_all(exporter, 9)
        log.write(1)
        assert batches(read_all(exporter, 10)) == 10
    assert shown.total("exporter_journal_gaps_total") == 0
    assert shown.total("exporter_unverified_lines_total", source="files:sglang") == 9


def test_from_start_counts_what_the_file_holds(log: LogFile) -> None:
    log.write(5)
    with serve(log, "--from-start") as exporter:
        shown = read_all(exporter, 5)
    assert batches(shown) == 5
    assert shown.total("exporter_journal_lines_total") == 10


def test_a_line_counts_once_it_is_whole_and_half_a_line_is_read_again(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "sglang.log", WRAPPINGS["plain"])
    log.write(1)
    half = len(decode_line(0)) // 2
    with serve(log) as exporter:
        log.write(1)
        read_all(exporter, 1)
        with log.path.open("a") as file:
            file.write(decode_line(0)[:half])
        shown = exporter.metrics()
        exporter.kill()
    assert batches(shown) == 1
    with log.path.open("a") as file:
        file.write(decode_line(0)[half:] + "\n")
    with serve(log) as exporter:
        assert batches(read_all(exporter, 1)) == 1


def test_truncation_of_unread_lines_with_no_copy_is_a_gap(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "sglang.log", WRAPPINGS["plain"])
    log.write(3)
    with serve(log) as exporter:
        log.write(3)
        read_all(exporter, 3)
        exporter.kill()
    log.write(3)
    with log.path.open("r+b") as file:
        file.truncate()
    log.write(1)
    with serve(log) as exporter:
        shown = read_all(exporter, 1)
    assert batches(shown) == 1
    assert shown.total("exporter_journal_gaps_total") == 1
