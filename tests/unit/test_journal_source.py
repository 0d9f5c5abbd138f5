"""The journal source against real journal files, written by systemd-journal-remote."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import systemd.journal

from exporter.records import LogLine, Record, Refusal, SourceUnavailableError
from exporter.sources import Position
from exporter.sources.journal import reopening
from exporter.sources.journal.damage import DamageWatch
from exporter.sources.journal.entries import EntryReader
from exporter.sources.journal.position import ReadTo
from exporter.sources.journal.reader import _Reader, open_file
from exporter.sources.journal.source import JournalMatch, JournalSource
from tests.journal_writer import JournalWriter, journal_remote
from tests.journald import hand_started_journald, why_not

pytestmark = pytest.mark.skipif(
    journal_remote() is None, reason="systemd-journal-remote is not installed"
)

UNIT = JournalMatch(unit="sglang.service")
MAIN = "/usr/bin/python -m sglang.launch_server"
PATIENCE_SECONDS = 60.0


def is_wanted(message: bytes) -> bool:
    return b"batch" in message or b"server_args=" in message or b"fired up" in message


class Followed:
    """A running source and what it emitted."""

    def __init__(self, source: JournalSource) -> None:
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
        """Waits, turn by turn of the loop, for something the source does."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - conditions of many kinds
                await asyncio.sleep(0.002)

    async def until_lines(self, count: int) -> list[str]:
        await self.until(lambda: len(self.lines) >= count)
        return self.messages


@asynccontextmanager
async def following(
    directory: Path | None,
    position: Position | None = None,
    *,
    match: JournalMatch = UNIT,
    from_start: bool = False,
    reopen_quiet_seconds: float = 60.0,
) -> AsyncIterator[Followed]:
    source = JournalSource(
        "kimi",
        match,
        is_wanted,
        directory=directory,
        from_start=from_start,
        reopen_quiet_seconds=reopen_quiet_seconds,
    )
    await source.open(position)
    followed = Followed(source)
    task = asyncio.create_task(source.run(followed.take))
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await source.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[JournalWriter]:
    with JournalWriter(tmp_path / "journal") as writer:
        yield writer


async def test_a_first_start_reads_from_now(journal: JournalWriter) -> None:
    journal.write("batch 0")
    journal.flush()
    async with following(journal.directory) as followed:
        journal.write("batch 1")
        journal.flush()
        assert await followed.until_lines(1) == ["batch 1"]
        assert followed.source.health.gaps == 0


async def test_from_start_reads_the_whole_journal(journal: JournalWriter) -> None:
    for number in range(3):
        journal.write(f"batch {number}")
    journal.rotate()
    journal.write("batch 3")
    journal.flush()
    async with following(journal.directory, from_start=True) as followed:
        assert await followed.until_lines(4) == [f"batch {number}" for number in range(4)]


async def test_an_entry_becomes_a_line_with_what_journald_vouches_for(
    journal: JournalWriter,
) -> None:
    async with following(journal.directory) as followed:
        stamp = journal.write("batch", pid=77, cmdline="sglang::scheduler_PP3")
        journal.flush()
        await followed.until_lines(1)
        assert followed.lines == [
            LogLine(
                server="kimi",
                logged_at=stamp / 1e6,
                message="batch",
                pid=77,
                title="sglang::scheduler_PP3",
                launch=journal.invocation,
            )
        ]


async def test_every_entry_of_the_unit_counts_and_no_other(journal: JournalWriter) -> None:
    async with following(journal.directory) as followed:
        journal.write("not for us: batch", unit="other.service")
        journal.write("INFO: 127.0.0.1 GET /health")
        journal.write(None)
        journal.write("batch")
        journal.flush()
        assert await followed.until_lines(1) == ["batch"]
        assert followed.source.health.lines == 3
        assert followed.source.health.lag_seconds is not None


async def test_entries_written_while_nobody_read_are_read_at_restart(
    journal: JournalWriter,
) -> None:
    async with following(journal.directory) as followed:
        journal.write("batch 0")
        journal.flush()
        await followed.until_lines(1)
        position = followed.source.position()
    journal.write("batch 1")
    journal.rotate()
    journal.write("batch 2")
    journal.flush()
    async with following(journal.directory, position) as followed:
        assert await followed.until_lines(2) == ["batch 1", "batch 2"]
        assert followed.source.health.gaps == 0


async def test_a_start_on_a_journal_without_our_unit_keeps_what_comes_before_a_crash(
    journal: JournalWriter,
) -> None:
    journal.write("other", unit="other.service")
    journal.flush()
    async with following(journal.directory) as followed:
        position = followed.source.position()
        error = followed.source.health.last_error or ""
        assert "no entry of sglang.service yet" in error
        assert "systemctl list-units 'sglang*'" in error
    journal.write("batch 0")
    journal.write("batch 1")
    journal.flush()
    async with following(journal.directory, position) as followed:
        assert await followed.until_lines(2) == ["batch 0", "batch 1"]
        assert followed.source.health.last_error is None


async def test_rotation_while_following_neither_loses_nor_doubles(journal: JournalWriter) -> None:
    async with following(journal.directory) as followed:
        for number in range(50):
            journal.write(f"batch {number}")
            if number % 10 == 9:
                journal.rotate()
                await followed.until_lines(number)
        journal.flush()
        await followed.until_lines(50)
        assert followed.messages == [f"batch {number}" for number in range(50)]
        assert followed.source.health.gaps == 0


async def test_a_journal_that_rotates_by_itself_is_followed(tmp_path: Path) -> None:
    """Sequence numbers run on through the files, as with journald."""
    with JournalWriter(tmp_path / "j", max_file_bytes=12 << 20) as journal:
        async with following(journal.directory) as followed:
            for number in range(12_000):
                journal.write(f"batch {number} {'x' * 400}")
            journal.flush()
            await followed.until_lines(12_000)
            assert len(journal.archived_files) >= 1
            assert followed.messages == [f"batch {n} {'x' * 400}" for n in range(12_000)]
            assert followed.source.health.gaps == 0


async def test_vacuum_of_everything_unread_is_a_gap(journal: JournalWriter) -> None:
    async with following(journal.directory) as followed:
        journal.write("batch 0")
        journal.flush()
        await followed.until_lines(1)
        position = followed.source.position()
    journal.write("batch 1")
    journal.flush()
    journal.vacuum(everything=True)
    async with following(journal.directory, position) as followed:
        assert followed.source.health.gaps == 1
        assert "vacuumed" in (followed.source.health.last_error or "")
        journal.write("batch 2")
        journal.flush()
        assert await followed.until_lines(1) == ["batch 2"]
        assert followed.source.health.gaps == 1


async def test_the_entry_behind_a_vanished_cursor_is_read(journal: JournalWriter) -> None:
    async with following(journal.directory) as followed:
        journal.write("batch 0")
        journal.flush()
        await followed.until_lines(1)
        position = followed.source.position()
    journal.rotate()
    journal.write("batch 1")
    journal.write("batch 2")
    journal.flush()
    journal.vacuum()
    async with following(journal.directory, position) as followed:
        assert await followed.until_lines(2) == ["batch 1", "batch 2"]
        assert followed.source.health.gaps == 1


async def test_vacuum_while_following_leaves_no_deleted_file_open(journal: JournalWriter) -> None:
    async with following(journal.directory) as followed:
        for number in range(3):
            journal.write(f"batch {number}")
            journal.rotate()
        journal.write("batch 3")
        journal.flush()
        await followed.until_lines(4)
        journal.vacuum()
        journal.write("batch 4")
        journal.flush()
        await followed.until_lines(5)
        await followed.until(lambda: not deleted_files_open(journal.directory))


def deleted_files_open(directory: Path) -> list[str]:
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    return [link for link in links if link.startswith(str(directory)) and "(deleted)" in link]


@pytest.mark.parametrize("truncate", [False, True], ids=["overwritten", "truncated"])
async def test_a_corrupted_tail_is_a_gap_and_reading_goes_on(
    journal: JournalWriter, truncate: bool
) -> None:
    async with following(journal.directory) as followed:
        journal.write("batch 0")
        journal.flush()
        await followed.until_lines(1)
        position = followed.source.position()
    for number in range(2000):
        journal.write(f"filler batch {number} {'x' * 100}")
    journal.flush()
    journal.corrupt_tail(size=60_000, truncate=truncate)
    journal.write("batch behind")
    journal.flush()
    async with following(journal.directory, position) as followed:
        await followed.until(lambda: "batch behind" in followed.messages)
        assert len(followed.messages) == len(set(followed.messages)) < 2001
        assert followed.source.health.gaps == 1


async def test_damage_is_a_gap_where_nothing_was_read_yet(journal: JournalWriter) -> None:
    for number in range(200):
        journal.write(f"batch {number}")
    journal.corrupt_tail(truncate=True)
    journal.write("batch behind")
    journal.flush()
    async with following(journal.directory, from_start=True) as followed:
        await followed.until(lambda: "batch behind" in followed.messages)
        assert followed.source.health.gaps == 1


async def test_damage_met_while_following_is_a_gap(journal: JournalWriter) -> None:
    async with following(journal.directory) as followed:
        journal.write("batch 0")
        journal.flush()
        await followed.until_lines(1)
        for number in range(2000):
            journal.write(f"filler batch {number} {'x' * 100}")
        journal.flush()
        journal.corrupt_tail(size=60_000)
        journal.write("batch behind")
        journal.flush()
        await followed.until(lambda: "batch behind" in followed.messages)
        await followed.until(lambda: followed.source.health.gaps > 0)
        assert len(followed.messages) == len(set(followed.messages)) < 2002
        assert followed.source.health.gaps == 1


async def test_a_damaged_entry_before_the_end_of_a_file_is_met_once_and_not_by_each_life(
    journal: JournalWriter,
) -> None:
    """The entry behind it makes libsystemd drop the file, and with it goes the cursor."""
    for number in range(3):
        journal.write(f"batch {number}")
    archived = journal.rotate()
    assert archived is not None
    damage_the_last_two_entries(archived)
    async with following(journal.directory, from_start=True) as followed:
        await followed.until(lambda: followed.source.health.lines == 2)
        assert followed.messages == ["batch 0"]
        assert followed.source.health.gaps > 0
        position = followed.source.position()
    journal.write("batch behind")
    journal.flush()
    async with following(journal.directory, position) as followed:
        assert await followed.until_lines(1) == ["batch behind"]
        assert followed.source.health.lines == 1


def damage_the_last_two_entries(path: Path) -> None:
    """The last but one loses its boot id and its fields, the last is an entry no more.

    systemd's JOURNAL_FILE_FORMAT: an object begins with its type and, at 8, its size; of an entry
    (type 3) the boot id begins at 40, and its fields follow. The header tells at 88 where objects
    begin, at 136 where the last of them does.
    """
    data = bytearray(path.read_bytes())
    at, last = (int.from_bytes(data[field : field + 8], "little") for field in (88, 136))
    entries = []
    while at <= last:
        size = int.from_bytes(data[at + 8 : at + 16], "little")
        if data[at] == 3:
            entries.append((at, size))
        at += (size + 7) // 8 * 8
    (damaged, size), (lost, _) = entries[-2:]
    data[damaged + 40 : damaged + size] = b"\xa5" * (size - 40)
    data[lost : lost + 8] = b"\xa5" * 8
    path.write_bytes(data)


async def test_a_file_that_is_just_being_made_is_no_damage(journal: JournalWriter) -> None:
    """Before its header is written it looks like one that was cut to nothing."""
    journal.write("batch 0")
    journal.flush()
    new, cut = journal.directory / "new.journal", journal.directory / "cut.journal"
    new.touch()
    cut.touch()
    looking = asyncio.create_task(DamageWatch(open_file, UNIT).newly_damaged([new, cut], 0))
    await asyncio.sleep(0)  # it has seen both empty
    shutil.copy(journal.active_file, new)
    assert await looking == 1


async def test_a_file_that_is_renamed_while_it_is_looked_at_is_no_damage(
    journal: JournalWriter,
) -> None:
    """The header of the one, and the entries of the other that took its name."""
    journal.write("batch 0")
    journal.flush()
    named, renamed = journal.directory / "named.journal", journal.directory / "renamed.journal"
    shutil.copy(journal.active_file, named)

    def open_after_rotation(path: Path) -> EntryReader:
        if not renamed.exists():
            named.rename(renamed)
            named.touch()
        return open_file(path)

    assert await DamageWatch(open_after_rotation, UNIT).newly_damaged([named], 0) == 0


async def test_a_cursor_from_the_future_does_not_wait_for_ever(journal: JournalWriter) -> None:
    journal.write("batch 0", realtime_us=4_000_000_000_000_000)
    journal.flush()
    async with following(journal.directory) as followed:
        position = followed.source.position()
    shutil.rmtree(journal.directory)
    with JournalWriter(journal.directory) as fresh:
        fresh.write("other", unit="other.service")
        fresh.flush()
        async with following(journal.directory, position) as followed:
            fresh.write("batch 1")
            fresh.flush()
            assert await followed.until_lines(1) == ["batch 1"]
            assert followed.source.health.gaps == 1


@pytest.mark.parametrize(
    "position",
    [
        {},
        {"cursor": "garbage"},
        {"cursor": 5},
        {"since_us": -1},
        {"since_us": "now"},
        {"cursor": "t=1"},
        {"offset": 12},
    ],
    ids=str,
)
async def test_a_corrupt_position_is_a_gap_and_reads_from_now(
    journal: JournalWriter, position: Position
) -> None:
    journal.write("batch 0")
    journal.flush()
    async with following(journal.directory, position) as followed:
        journal.write("batch 1")
        journal.flush()
        assert await followed.until_lines(1) == ["batch 1"]
        assert followed.source.health.gaps == 1


async def test_suppressed_messages_of_our_unit_are_counted(journal: JournalWriter) -> None:
    async with following(journal.directory) as followed:
        journal.write_suppressed(123)
        journal.write_suppressed(45, unit="other.service")
        journal.write("batch")
        journal.flush()
        await followed.until_lines(1)
        assert followed.source.health.suppressed_messages == 123
        assert followed.source.health.lines == 1


async def test_journalds_message_id_lets_nobody_elses_line_in(journal: JournalWriter) -> None:
    async with following(journal.directory) as followed:
        for message in ("forged batch", "Suppressed 9 messages from sglang.service"):
            journal.write(
                message,
                unit="evil.service",
                transport="journal",
                MESSAGE_ID="a596d6fe7bfa4994828e72309e95d61e",
                N_DROPPED=9,
                OBJECT_SYSTEMD_UNIT="sglang.service",
            )
        journal.write("batch")
        journal.flush()
        assert await followed.until_lines(1) == ["batch"]
        assert followed.source.health.suppressed_messages == 0
        assert followed.source.health.lines == 1


async def test_an_entry_that_lost_its_text_is_a_gap(journal: JournalWriter) -> None:
    async with following(journal.directory) as followed:
        journal.write(None, transport="journal")
        journal.write(None)
        journal.write("batch")
        journal.flush()
        await followed.until_lines(1)
        assert followed.source.health.gaps == 1
        assert followed.source.health.lines == 3


async def test_an_entry_whose_text_is_still_being_written_is_looked_at_again(
    journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def field(reader: systemd.journal.Reader, name: str) -> bytes:
        if name == "MESSAGE":
            asked.append(reader)
            if len(asked) == 2:
                raise KeyError(name)
        return reader._get(name)  # type: ignore[no-any-return]  # it has no types

    monkeypatch.setattr(_Reader, "field", field)
    async with following(journal.directory) as followed:
        for number in range(3):
            journal.write(f"batch {number}")
        journal.flush()
        assert await followed.until_lines(3) == ["batch 0", "batch 1", "batch 2"]
        assert (followed.source.health.lines, followed.source.health.gaps) == (3, 0)


@pytest.mark.parametrize("reason", ["pid-change", "line-max", "nul", "eof"])
async def test_a_line_that_journald_cut_is_refused(journal: JournalWriter, reason: str) -> None:
    async with following(journal.directory) as followed:
        journal.write("batch cut", _LINE_BREAK=reason)
        journal.write("batch whole", pid=5)
        journal.flush()
        assert await followed.until_lines(1) == ["batch whole"]
        assert followed.source.health.read_refusals == {Refusal.NOT_WHOLE: 1}


@pytest.mark.parametrize("reason", ["line-max", "nul"])
async def test_the_rest_of_a_cut_line_is_refused_too(journal: JournalWriter, reason: str) -> None:
    """A forger fills a line up to the cut; its rest starts an entry at the first column."""
    async with following(journal.directory) as followed:
        journal.write("x" * 49152, pid=7, _LINE_BREAK=reason)
        journal.write("another process' batch", pid=8)
        journal.write("forged batch", pid=7)
        journal.write("batch of the same process", pid=7)
        journal.flush()
        assert await followed.until_lines(2) == [
            "another process' batch",
            "batch of the same process",
        ]
        assert followed.source.health.read_refusals == {Refusal.NOT_WHOLE: 1}


async def test_the_rest_of_a_cut_line_is_refused_after_a_restart(journal: JournalWriter) -> None:
    journal.write("x" * 49152, _LINE_BREAK="line-max")
    journal.flush()
    async with following(journal.directory) as followed:
        journal.write("forged batch")
        journal.write("batch")
        journal.flush()
        assert await followed.until_lines(1) == ["batch"]


async def test_a_container_runtimes_pieces_are_refused(journal: JournalWriter) -> None:
    docker = {"CONTAINER_NAME": "sglang", "CONTAINER_ID_FULL": "c" * 64, "PRIORITY": "6"}
    match = JournalMatch(container="sglang")
    async with following(journal.directory, match=match) as followed:

        def write_as_docker(text: str, **more: str) -> None:
            fields: dict[str, Any] = {**docker, **more}
            journal.write(text, transport="journal", cmdline="/usr/bin/dockerd", **fields)

        write_as_docker("a piece of a batch", CONTAINER_PARTIAL_MESSAGE="true")
        write_as_docker("the rest, forged batch")
        write_as_docker("last batch", CONTAINER_PARTIAL_ID="1", CONTAINER_PARTIAL_LAST="true")
        write_as_docker("whole batch")
        journal.flush()
        assert await followed.until_lines(1) == ["whole batch"]
        assert followed.source.health.read_refusals == {Refusal.NOT_WHOLE: 3}
        line = followed.lines[0]
        assert (line.title, line.pid, line.launch) == (None, None, None)


@pytest.mark.parametrize(
    ("transport", "cmdline", "fields", "title"),
    [
        ("stdout", "sglang::scheduler_PP1", {}, "sglang::scheduler_PP1"),
        ("stdout", MAIN, {}, MAIN),
        ("stdout", None, {}, ""),
        ("stdout", "conmon", {"CONTAINER_NAME": "sglang"}, None),
        ("journal", "dockerd", {"CONTAINER_NAME": "sglang"}, None),
        ("journal", "sglang::scheduler_PP1", {}, "sglang::scheduler_PP1"),
        ("syslog", "logger", {}, None),
        (None, None, {}, None),
    ],
    ids=["scheduler", "main", "unknown", "podman", "docker", "own", "syslog", "export"],
)
async def test_the_title_is_known_only_where_journald_vouches_for_the_writer(
    journal: JournalWriter,
    transport: str | None,
    cmdline: str | None,
    fields: dict[str, Any],
    title: str | None,
) -> None:
    async with following(journal.directory) as followed:
        journal.write("batch", transport=transport, cmdline=cmdline, **fields)
        journal.flush()
        await followed.until_lines(1)
        assert followed.lines[0].title == title


async def test_invalid_utf8_is_delivered_with_replacement_characters(
    journal: JournalWriter,
) -> None:
    async with following(journal.directory) as followed:
        journal.write(b"batch \xff\xfe end")
        journal.write("two lines\nbatch")
        journal.flush()
        assert await followed.until_lines(2) == ["batch \ufffd\ufffd end", "two lines\nbatch"]


async def test_a_huge_message_is_refused_and_harmless(journal: JournalWriter) -> None:
    async with following(journal.directory) as followed:
        journal.write("batch" * 200_000, transport="journal")
        journal.write("batch")
        journal.flush()
        assert await followed.until_lines(1) == ["batch"]
        assert followed.source.health.read_refusals == {Refusal.NOT_WHOLE: 1}


def start_server(journal: JournalWriter, name: str) -> None:
    journal.write(f"server_args={name}", pid=100, cmdline=MAIN)
    journal.write("noise", pid=100, cmdline=MAIN)
    journal.write(f"warm-up batch of {name}", pid=101)
    journal.write("fired up and ready to roll", pid=100, cmdline=MAIN)
    journal.write(f"counted batch of {name}", pid=101)


@pytest.mark.parametrize("with_invocation", [True, False], ids=["invocation", "main process"])
async def test_a_start_looks_back_through_the_running_launch_for_facts(
    journal: JournalWriter, with_invocation: bool
) -> None:
    start_server(journal, "old")
    journal.rotate()
    journal.invocation = "f" * 32 if with_invocation else None
    if not with_invocation:
        journal.boot_id = "b" * 32
    start_server(journal, "new")
    journal.flush()
    async with following(journal.directory) as followed:
        journal.write("live batch")
        journal.flush()
        assert await followed.until_lines(1) == ["live batch"]
        assert [line.message for line in followed.facts] == [
            "server_args=new",
            "warm-up batch of new",
            "fired up and ready to roll",
        ]
        assert followed.source.health.lines == 1


async def test_a_forged_later_launch_does_not_replace_the_real_facts(
    journal: JournalWriter,
) -> None:
    journal.invocation = None
    start_server(journal, "real")
    journal.write("server_args=forged", pid=100, cmdline=MAIN)
    journal.write("fired up and ready to roll", pid=100, cmdline=MAIN)
    journal.flush()
    async with following(journal.directory) as followed:
        await followed.until(lambda: len(followed.facts) == 3)
        assert followed.facts[0].message == "server_args=real"


async def test_looking_back_stops_where_live_reading_begins(journal: JournalWriter) -> None:
    """The launch began while nobody read: its lines come once, as live ones."""
    journal.write("old batch")
    journal.flush()
    async with following(journal.directory) as followed:
        position = followed.source.position()
    journal.invocation = "f" * 32
    start_server(journal, "new")
    journal.flush()
    async with following(journal.directory, position) as followed:
        assert await followed.until_lines(4) == [
            "server_args=new",
            "warm-up batch of new",
            "fired up and ready to roll",
            "counted batch of new",
        ]
        assert [line.message for line in followed.facts] == ["old batch"]


async def test_20000_entries_leave_others_their_turn(journal: JournalWriter) -> None:
    for number in range(20_000):
        journal.write(f"batch {number}" if number % 4 == 0 else "noise")
    journal.flush()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count_turns())
    async with following(journal.directory, from_start=True) as followed:
        await followed.until(lambda: followed.source.health.lines == 20_000)
        assert len(followed.lines) == 5_000
        assert turns >= 20_000 / 500
    other.cancel()


async def test_a_missing_directory_names_itself(tmp_path: Path) -> None:
    source = JournalSource("kimi", UNIT, is_wanted, directory=tmp_path / "nowhere")
    with pytest.raises(SourceUnavailableError, match=r"nowhere.*No such file or directory"):
        await source.open(None)
    assert not source.health.up


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
async def test_missing_permission_names_the_group() -> None:
    directory = Path(tempfile.mkdtemp())
    try:
        with JournalWriter(directory) as journal:
            journal.write("batch")
            journal.flush()
        os.chmod(directory, 0o755)  # noqa: S103 - to be listed by another user
        os.chmod(journal.active_file, 0o600)
        source = JournalSource("kimi", UNIT, is_wanted, directory=directory)
        os.seteuid(65534)
        try:
            with pytest.raises(SourceUnavailableError, match="usermod -aG systemd-journal nobody"):
                await source.open(None)
        finally:
            os.seteuid(0)
    finally:
        shutil.rmtree(directory)


async def test_from_start_on_a_journal_without_our_unit_hints_at_its_name(
    journal: JournalWriter,
) -> None:
    journal.write("batch", unit="other.service")
    journal.flush()
    async with following(journal.directory, from_start=True) as followed:
        await followed.until(lambda: followed.source.health.last_error is not None)
        assert "no entry of sglang.service yet" in (followed.source.health.last_error or "")
        assert followed.source.health.up


class BreaksOnce:
    """A real reader that reports a damaged file at its third entry."""

    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader
        self._left = 3

    def __getattr__(self, name: str) -> object:
        return getattr(self._reader, name)

    def next_entry(self) -> bool:
        self._left -= 1
        if self._left == 0:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        return self._reader.next_entry()


async def test_a_reader_that_breaks_is_opened_anew_where_it_was(journal: JournalWriter) -> None:
    async with following(journal.directory) as followed:
        tail = followed.source._tail
        tail._reader = cast(EntryReader, BreaksOnce(tail.reader))
        for number in range(5):
            journal.write(f"batch {number}")
        journal.flush()
        assert await followed.until_lines(5) == [f"batch {number}" for number in range(5)]
        assert "Bad message" in (followed.source.health.last_error or "")
        assert followed.source.health.gaps == 0


def test_a_missing_library_names_what_to_install() -> None:
    script = (
        "import asyncio, sys\n"
        "sys.modules['systemd'] = None\n"
        "from exporter.sources.journal.source import JournalMatch, JournalSource\n"
        "source = JournalSource('kimi', JournalMatch(unit='x.service'), bool)\n"
        "asyncio.run(source.open(None))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "SourceUnavailableError" in done.stderr
    assert "pip install systemd-python" in done.stderr
    assert "libsystemd-dev" in done.stderr


async def test_a_replaced_directory_is_found_again(journal: JournalWriter) -> None:
    async with following(journal.directory, reopen_quiet_seconds=0.05) as followed:
        journal.write("batch 0")
        journal.flush()
        await followed.until_lines(1)
        journal.close()
        shutil.rmtree(journal.directory)
        with JournalWriter(journal.directory) as again:
            again.write("batch 1")
            again.flush()
            await followed.until_lines(2)
        assert followed.messages == ["batch 0", "batch 1"]


async def test_reopening_a_quiet_journal_changes_nothing(journal: JournalWriter) -> None:
    async with following(journal.directory, reopen_quiet_seconds=0.005) as followed:
        for number in range(200):
            journal.write(f"batch {number}")
            if number % 20 == 0:
                journal.flush()
                await followed.until_lines(number)
        journal.flush()
        await followed.until_lines(200)
        assert followed.messages == [f"batch {number}" for number in range(200)]
        assert followed.source.health.gaps == 0


async def test_a_busy_journal_is_opened_anew_and_nothing_changes(
    journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reopening, "BUSY_SECONDS", 0.0)
    monkeypatch.setattr(reopening, "BUSY_ENTRIES", 10)
    async with following(journal.directory) as followed:
        first, changed = followed.source._tail.reader, False
        for number in range(200):
            journal.write(f"batch {number}")
            if number % 20 == 19:
                journal.flush()
                await followed.until_lines(number + 1)
                changed = changed or followed.source._tail.reader is not first
        assert changed
        assert followed.messages == [f"batch {number}" for number in range(200)]
        assert followed.source.health.gaps == 0


def test_a_busy_journal_is_opened_anew_after_many_entries_but_not_at_once() -> None:
    now = [1000.0]
    due = reopening.Reopening(lambda: now[0], 60.0)
    due.note_read(500_000)  # what had gathered before the start
    assert not due.is_due(is_empty=False)
    now[0] += 30.0
    due.note_read(1)
    now[0] += 30.0
    assert due.is_due(is_empty=False)
    due.note_opened()
    now[0] += 59.0
    due.note_read(reopening.BUSY_ENTRIES - 1)
    now[0] += 59.0
    assert not due.is_due(is_empty=False)
    due.note_read(1)
    assert due.is_due(is_empty=False)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_random_interruptions_neither_lose_nor_double_an_entry(
    journal: JournalWriter, seed: int
) -> None:
    """30 lives of a source in all, with rotations in between and inside."""
    chance = random.Random(seed)
    read: list[str] = []
    written = 0
    position: Position | None = ReadTo(since_us=0).as_position()
    for _ in range(10):
        for _ in range(chance.choice([5, 300, 2500])):
            journal.write(f"batch {written}")
            written += 1
            if chance.random() < 0.003:
                journal.rotate()
        journal.flush()
        async with following(
            journal.directory, position, reopen_quiet_seconds=chance.choice([0.001, 60.0])
        ) as followed:
            for _ in range(chance.randrange(30)):
                if chance.random() < 0.3:
                    journal.write(f"batch {written}")
                    written += 1
                    journal.flush()
                if chance.random() < 0.05:
                    journal.rotate()
                await asyncio.sleep(0)
            position = followed.source.position()
            read += followed.messages
            assert followed.source.health.gaps == 0
    async with following(journal.directory, position) as followed:
        await followed.until(lambda: len(read) + len(followed.lines) >= written)
        read += followed.messages
    assert read == [f"batch {number}" for number in range(written)]


@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
async def test_a_real_journald_is_followed_through_its_own_rotation() -> None:
    match = JournalMatch(identifier="sglang-test")

    def say(text: str) -> None:
        subprocess.run(["systemd-cat", "-t", "sglang-test", "printf", "%b", text], check=True)

    with hand_started_journald() as journald:
        say("batch 0\\n")
        async with following(None, match=match) as followed:
            say("batch 1\\nbatch nul\\0batch rest\\n")
            say("batch unfinished")
            await followed.until_lines(1)
            journald.rotate()
            say("batch 2\\n")
            await followed.until(lambda: "batch 2" in followed.messages)
            assert followed.messages[-2:] == ["batch 1", "batch 2"]
            assert followed.source.health.read_refusals == {Refusal.NOT_WHOLE: 3}
            assert followed.source.health.gaps == 0
            assert followed.lines[-1].title is not None
