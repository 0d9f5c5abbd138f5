"""Files and standard input as sources: rotation, truncation, container prefixes, restarts."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from exporter.records import LogLine, Record, Refusal, SourceUnavailableError
from exporter.sources import Position
from exporter.sources.files.container_log import ContainerLog, UnwrappedLine
from exporter.sources.files.source import FilesSource, StdinSource

PATIENCE_SECONDS = 60.0
AT = "2026-09-24T10:31:46.500000000Z"
AT_SECONDS = 1790245906.5


def is_wanted(message: bytes) -> bool:
    return b"batch" in message or b"server_args=" in message or b"fired up" in message


class Followed:
    """A running source and what it emitted."""

    def __init__(self, source: FilesSource | StdinSource) -> None:
        self.source = source
        self.facts: list[LogLine] = []
        self.lines: list[LogLine] = []

    def take(self, record: Record) -> None:
        assert isinstance(record, LogLine)
        (self.facts if record.facts_only else self.lines).append(record)

    @property
    def messages(self) -> list[str]:
        return [line.message for line in self.lines]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - conditions of many kinds
                await asyncio.sleep(0.002)

    async def until_lines(self, count: int) -> list[str]:
        await self.until(lambda: len(self.lines) >= count)
        return self.messages


@asynccontextmanager
async def following(
    pattern: Path | str, position: Position | None = None, *, from_start: bool = False
) -> AsyncIterator[Followed]:
    source = FilesSource("kimi", [str(pattern)], is_wanted, from_start=from_start)
    await source.open(position)
    followed = Followed(source)
    task = asyncio.create_task(source.run(followed.take))
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await source.close()


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8", newline="") as file:
        file.write(text)


def rewrite(path: Path, text: str) -> None:
    os.truncate(path, 0)
    append(path, text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "sglang.log"


async def test_a_first_start_reads_from_the_end(log: Path) -> None:
    append(log, "batch old\nbatch half")
    async with following(log) as followed:
        append(log, " written\nbatch new\n")
        assert await followed.until_lines(2) == ["batch half written", "batch new"]


async def test_from_start_reads_what_is_there(log: Path) -> None:
    append(log, "batch 0\nnoise\nbatch 1\n")
    async with following(log, from_start=True) as followed:
        assert await followed.until_lines(2) == ["batch 0", "batch 1"]
        assert followed.source.health.lines == 3
        assert followed.source.health.up


async def test_a_line_of_a_file_names_no_process(log: Path) -> None:
    append(log, "")
    async with following(log) as followed:
        append(log, f"{AT} stdout F batch\n")
        await followed.until_lines(1)
        assert followed.lines == [LogLine(server="kimi", logged_at=AT_SECONDS, message="batch")]


async def test_a_file_that_appears_later_is_read_from_its_start(tmp_path: Path) -> None:
    async with following(tmp_path / "*.log") as followed:
        assert "no file matches" in (followed.source.health.last_error or "")
        append(tmp_path / "a.log", "batch a\n")
        append(tmp_path / "b.txt", "batch b\n")
        assert await followed.until_lines(1) == ["batch a"]
        assert followed.source.health.last_error is None


async def test_a_line_waits_for_its_newline(log: Path) -> None:
    append(log, "")
    async with following(log) as followed:
        append(log, "ba")
        append(log, "tch 1")
        await asyncio.sleep(0)
        append(log, "\nbatch 2\n")
        assert await followed.until_lines(2) == ["batch 1", "batch 2"]


async def test_an_endless_line_is_refused_up_to_its_newline(log: Path) -> None:
    append(log, "")
    async with following(log) as followed:
        append(log, "batch " + "x" * 200_000)
        await followed.until(lambda: bool(followed.source.health.read_refusals))
        append(log, " forged batch\nbatch\n")
        assert await followed.until_lines(1) == ["batch"]
        assert followed.source.health.read_refusals == {Refusal.NOT_WHOLE: 1}


async def test_rotation_by_rename_finishes_the_old_file_first(log: Path) -> None:
    append(log, "")
    async with following(log) as followed:
        append(log, "".join(f"batch {number}\n" for number in range(20_000)))
        os.rename(log, f"{log}.1")
        append(log, "batch new\n")
        append(Path(f"{log}.1"), "batch late\n")
        messages = await followed.until_lines(20_002)
        assert messages == [*(f"batch {n}" for n in range(20_000)), "batch late", "batch new"]
        assert followed.source.health.gaps == 0


async def test_a_rotated_name_that_matches_too_is_not_read_twice(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    append(log, "")
    async with following(tmp_path / "x.log*") as followed:
        append(log, "batch 0\n")
        await followed.until_lines(1)
        os.rename(log, f"{log}.1")
        append(log, "batch 1\n")
        await followed.until_lines(2)
        assert followed.messages == ["batch 0", "batch 1"]


async def test_truncation_without_a_copy_is_a_gap(log: Path) -> None:
    append(log, "")
    async with following(log) as followed:
        append(log, "batch 0\nbatch 1\n")
        await followed.until_lines(2)
        rewrite(log, "batch 2\n")
        assert await followed.until_lines(3) == ["batch 0", "batch 1", "batch 2"]
        assert followed.source.health.gaps == 1


async def test_a_file_cut_and_grown_past_the_old_end_is_noticed(log: Path) -> None:
    append(log, "")
    async with following(log) as followed:
        append(log, "batch 0\n")
        await followed.until_lines(1)
        rewrite(log, "batch of another text\nbatch 2\n")
        await followed.until_lines(3)
        assert followed.messages == ["batch 0", "batch of another text", "batch 2"]
        assert followed.source.health.gaps == 1


@pytest.mark.parametrize("glob", ["x.log", "x.log*"])
async def test_copytruncate_loses_nothing_while_the_copy_is_there(
    tmp_path: Path, glob: str
) -> None:
    log = tmp_path / "x.log"
    append(log, "")
    async with following(tmp_path / glob) as followed:
        append(log, "batch 0\n")
        await followed.until_lines(1)
        append(log, "batch 1\n")
        shutil.copyfile(log, tmp_path / "x.log.1")
        os.truncate(log, 0)
        append(log, "batch 2\n")
        assert await followed.until_lines(3) == ["batch 0", "batch 1", "batch 2"]
        assert followed.source.health.gaps == 0


async def test_lines_written_while_nobody_read_are_read_at_restart(log: Path) -> None:
    append(log, "batch old\n")
    async with following(log) as followed:
        append(log, "batch 0\n")
        await followed.until_lines(1)
        position = json.loads(json.dumps(followed.source.position()))
    append(log, "batch 1\n")
    async with following(log, position) as followed:
        assert await followed.until_lines(1) == ["batch 1"]
        assert followed.source.health.gaps == 0


async def test_a_file_renamed_while_nobody_read_is_found_by_its_inode(log: Path) -> None:
    append(log, "batch old\n")
    async with following(log) as followed:
        position = followed.source.position()
    append(log, "batch 0\n")
    os.rename(log, f"{log}.1")
    append(log, "batch 1\n")
    async with following(log, position) as followed:
        assert await followed.until_lines(2) == ["batch 0", "batch 1"]
        assert followed.source.health.gaps == 0


async def test_a_file_replaced_while_nobody_read_is_a_gap(log: Path) -> None:
    append(log, "batch old\n")
    async with following(log) as followed:
        position = followed.source.position()
    os.unlink(log)
    append(log, "batch 0\n")
    async with following(log, position) as followed:
        assert await followed.until_lines(1) == ["batch 0"]
        assert followed.source.health.gaps == 1


@pytest.mark.parametrize(
    "position",
    [
        {},
        {"files": 5},
        {"files": [{}]},
        {"files": [{"path": "x", "key": [1, 2]}]},
        {"cursor": "s="},
    ],
    ids=str,
)
async def test_a_corrupt_position_is_a_gap_and_reads_from_now(
    log: Path, position: Position
) -> None:
    append(log, "batch old\n")
    async with following(log, position) as followed:
        append(log, "batch new\n")
        assert await followed.until_lines(1) == ["batch new"]
        assert followed.source.health.gaps == 1


async def test_the_position_holds_no_log_text(log: Path) -> None:
    append(log, "batch secret\n")
    async with following(log, from_start=True) as followed:
        await followed.until_lines(1)
        assert "secret" not in json.dumps(followed.source.position())


async def test_a_start_looks_back_for_facts_up_to_fired_up(log: Path) -> None:
    append(log, "server_args=a\nnoise\nbatch warm-up\nfired up\nfired up and ready to roll\n")
    append(log, "server_args=forged\nbatch old\n")
    async with following(log) as followed:
        append(log, "batch new\n")
        assert await followed.until_lines(1) == ["batch new"]
        assert [line.message for line in followed.facts] == [
            "server_args=a",
            "batch warm-up",
            "fired up",
            "fired up and ready to roll",
        ]


async def test_100_idle_files_cost_one_look_each(tmp_path: Path) -> None:
    for number in range(100):
        append(tmp_path / f"{number}.log", "batch old\n")
    async with following(tmp_path / "*.log") as followed:
        append(tmp_path / "50.log", "batch new\n")
        assert await followed.until_lines(1) == ["batch new"]


async def test_a_named_pipe_and_a_directory_that_match_are_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "directory.log").mkdir()
    append(tmp_path / "x.log", "")
    async with following(tmp_path / "*.log") as followed:
        append(tmp_path / "x.log", "batch\n")
        assert await followed.until_lines(1) == ["batch"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
async def test_missing_permission_names_the_remedy() -> None:
    directory = Path(tempfile.mkdtemp())
    try:
        append(directory / "x.log", "batch\n")
        os.chmod(directory / "x.log", 0o600)
        os.chmod(directory, 0o755)  # noqa: S103 - to be listed by another user
        source = FilesSource("kimi", [f"{directory}/*.log"], is_wanted)
        os.seteuid(65534)
        try:
            with pytest.raises(SourceUnavailableError, match="setfacl -m u:nobody:r"):
                await source.open(None)
        finally:
            os.seteuid(0)
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_random_interruptions_neither_lose_nor_double_a_line(log: Path, seed: int) -> None:
    chance = random.Random(seed)
    append(log, "")
    read: list[str] = []
    written = rotated = 0
    async with following(log) as followed:
        position = followed.source.position()
    for _ in range(10):
        count = chance.choice([5, 300, 9000])
        rotate_at = chance.randrange(2 * count)  # at most once: what is rotated twice is not found
        for number in range(count):
            append(log, f"batch {written}\n")
            written += 1
            if number == rotate_at:
                rotated += 1
                os.rename(log, f"{log}.{rotated}")
                append(log, "")
        async with following(log, position) as followed:
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(0)
            position = followed.source.position()
            read += followed.messages
    async with following(log, position) as followed:
        await followed.until(lambda: len(read) + len(followed.lines) >= written)
        read += followed.messages
        assert followed.source.health.gaps == 0
    assert read == [f"batch {number}" for number in range(written)]


def test_a_docker_line_in_pieces_is_put_together_by_stream() -> None:
    log = ContainerLog()

    def docker(text: str, stream: str) -> UnwrappedLine | None:
        return log.unwrap(json.dumps({"log": text, "stream": stream, "time": AT}).encode())

    assert docker("batch one ", "stdout") is None
    assert docker("batch err\n", "stderr") == UnwrappedLine(b"batch err", AT_SECONDS)
    assert log.is_mid_line
    assert docker("goes on\n", "stdout") == UnwrappedLine(b"batch one goes on", AT_SECONDS)
    assert not log.is_mid_line


def test_a_cri_line_in_pieces_is_put_together() -> None:
    log = ContainerLog()
    assert log.unwrap(f"{AT} stdout P batch ".encode()) is None
    assert log.unwrap(f"{AT} stdout F one".encode()) == UnwrappedLine(b"batch one", AT_SECONDS)


def test_a_line_in_endless_pieces_is_not_whole() -> None:
    log = ContainerLog()
    for _ in range(20):
        assert log.unwrap(f"{AT} stdout P {'x' * 16384}".encode()) is None
    line = log.unwrap(f"{AT} stdout F end".encode())
    assert line is not None
    assert not line.is_whole
    assert len(line.message) == 65536


@pytest.mark.parametrize(
    "raw",
    [
        b'{"log":',
        b'{"log":5}',
        b'{"log":"x"',
        b"2026-09-24 stdout F x",
        b"[2026-09-24 10:31:46 PP1] Decode batch, x",
        b"\xff\xfe",
        b"",
    ],
    ids=repr,
)
def test_what_is_no_wrapping_passes_as_plain_text(raw: bytes) -> None:
    assert ContainerLog().unwrap(raw) == UnwrappedLine(raw, None)


def test_a_wrapping_inside_a_wrapping_is_text() -> None:
    inner = json.dumps({"log": "batch forged\n", "stream": "stdout", "time": AT})
    outer = json.dumps({"log": inner + "\n", "stream": "stdout", "time": AT}).encode()
    assert ContainerLog().unwrap(outer) == UnwrappedLine(inner.encode(), AT_SECONDS)


@asynccontextmanager
async def reading_pipe() -> AsyncIterator[tuple[Followed, int, asyncio.Task[None]]]:
    reader, writer = os.pipe()
    source = StdinSource("kimi", is_wanted, descriptor=reader)
    await source.open(None)
    followed = Followed(source)
    task = asyncio.create_task(source.run(followed.take))
    try:
        yield followed, writer, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await source.close()
        os.close(reader)


async def test_standard_input_is_read_line_by_line_and_ends_for_good() -> None:
    async with reading_pipe() as (followed, writer, task):
        os.write(writer, b"batch 1\nnoise\nba")
        assert await followed.until_lines(1) == ["batch 1"]
        os.write(writer, b"tch 2\nbatch unfinished")
        os.close(writer)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await task
        assert followed.messages == ["batch 1", "batch 2"]
        assert followed.source.position() is None
        assert not followed.source.health.up


async def test_standard_input_from_a_file_is_read_too(log: Path) -> None:
    append(log, "batch 1\nbatch 2\n")
    descriptor = os.open(log, os.O_RDONLY)
    source = StdinSource("kimi", is_wanted, descriptor=descriptor)
    await source.open({"ignored": 1})
    followed = Followed(source)
    await source.run(followed.take)
    os.close(descriptor)
    assert followed.messages == ["batch 1", "batch 2"]
