"""Journal files with damage that libsystemd steps over without a word: what can be read is read."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from pathlib import Path
from typing import cast

import pytest

from exporter.records import LogLine
from exporter.sources import Position
from exporter.sources.journal.damage import DamageWatch
from exporter.sources.journal.entries import EntryReader
from exporter.sources.journal.reader import open_file
from exporter.sources.journal.source import JournalMatch, JournalSource
from tests.journal_lives import UNIT, journal_entries
from tests.journal_writer import JournalWriter

DATA = Path(__file__).parents[1] / "data" / "damaged_journals"
MATCH = JournalMatch(unit=UNIT)
POSITIONS: dict[str, Position] = {
    "seek_by_cursor_finds_nothing": {
        "cursor": "s=c6e76d50dd404eaab07f2dc41d1abf6f;i=162;b=31e8e58672a446b187950c0ed87a7e3a;"
        "m=84e3d1620;t=66183b51de7d2;x=478c73170c6d6c61"
    },
    "seek_by_time_finds_nothing": {"since_us": 1796068256799485},
}
"""Where an exporter had read to: before entries of the file."""


def unpacked(name: str, folder: Path) -> Path:
    folder.mkdir()
    path = folder / "x@0123456789abcdef0123456789abcdef-0000000000000001-0000000000000001.journal"
    path.write_bytes(gzip.decompress((DATA / f"{name}.journal.gz").read_bytes()))
    return path


@pytest.mark.parametrize("name", POSITIONS)
async def test_what_only_reading_from_the_head_finds_is_read(name: str, tmp_path: Path) -> None:
    file = unpacked(name, tmp_path / "journal")
    after_us = 1796068256799485 if "time" in name else 0x66183B51DE7D2
    kept = [at for at in journal_entries(file.parent) if at >= after_us]
    assert kept
    source = JournalSource("sglang", MATCH, lambda _message: True, directory=file.parent)
    lines: list[LogLine] = []
    await source.open(POSITIONS[name])
    running = asyncio.create_task(source.run(lines.append))
    async with asyncio.timeout(20):
        while source.health.lines < len(kept):  # noqa: ASYNC110 - a source tells of no progress
            await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert [line.logged_at for line in lines if not line.facts_only] == pytest.approx(
        [at / 1e6 for at in kept]
    )
    assert source.health.gaps >= 1
    assert source.position() != POSITIONS[name]


async def test_an_entry_that_only_its_index_has_lost_is_a_gap(tmp_path: Path) -> None:
    file = unpacked("index_lost_an_entry", tmp_path / "journal")
    newest = max(journal_entries(file.parent))
    assert await DamageWatch(open_file, MATCH).newly_damaged([file], newest - 1) == 1
    assert await DamageWatch(open_file, MATCH).newly_damaged([file], newest + 10_000) == 0


def forget_the_last_in_the_index(path: Path) -> None:
    """Of the server's unit: the object of its field counts one entry less than it leads to.

    systemd's JOURNAL_FILE_FORMAT: a data object (type 1) counts its entries at 56; its payload
    follows at 64, or at 72 in a compact file.
    """
    data = path.read_bytes()
    payload = data.index(f"_SYSTEMD_UNIT={UNIT}".encode())
    (at,) = (payload - size for size in (64, 72) if data[payload - size] == 1)
    entries = int.from_bytes(data[at + 56 : at + 64], "little")
    with path.open("r+b") as file:  # in place: its writer has it mapped
        file.seek(at + 56)
        file.write((entries - 1).to_bytes(8, "little"))


@pytest.mark.parametrize("others", [0, 5])
async def test_an_entry_lost_from_the_index_is_a_gap_beside_entries_of_others_or_none(
    others: int, tmp_path: Path
) -> None:
    with JournalWriter(tmp_path) as journal:
        for number in range(20):
            journal.write(f"batch {number}")
        for number in range(others):
            journal.write(f"other {number}", unit="other.service")
        journal.flush()
        file = journal.active_file
        assert await DamageWatch(open_file, MATCH).newly_damaged([file], 0) == 0
        forget_the_last_in_the_index(file)
        assert await DamageWatch(open_file, MATCH).newly_damaged([file], 0) == 1


async def test_an_entry_written_while_a_file_is_looked_at_stands_for_no_lost_one(
    tmp_path: Path,
) -> None:
    with JournalWriter(tmp_path) as journal:
        for number in range(20):
            journal.write(f"batch {number}")
        journal.flush()
        forget_the_last_in_the_index(journal.active_file)

        def open_while_it_grows(path: Path) -> EntryReader:
            journal.write("batch behind")
            journal.flush()
            return open_file(path)

        watch = DamageWatch(open_while_it_grows, MATCH)
        assert await watch.newly_damaged([journal.active_file], 0) == 1


class GrowsBetweenWalks:
    """A real reader of a file that gets another entry before it is walked once more."""

    def __init__(self, reader: EntryReader, journal: JournalWriter) -> None:
        self._reader = reader
        self._journal = journal

    def __getattr__(self, name: str) -> object:
        return getattr(self._reader, name)

    def flush_matches(self) -> None:
        self._journal.write("batch behind")
        self._journal.flush()
        self._reader.flush_matches()


async def test_an_entry_written_while_a_file_is_looked_at_is_no_damage(tmp_path: Path) -> None:
    with JournalWriter(tmp_path) as journal:
        for number in range(20):
            journal.write(f"batch {number}")
        journal.write("other", unit="other.service")
        journal.flush()

        def open_growing(path: Path) -> EntryReader:
            return cast(EntryReader, GrowsBetweenWalks(open_file(path), journal))

        watch = DamageWatch(open_growing, MATCH)
        assert await watch.newly_damaged([journal.active_file], 0) == 0
        assert journal.written > 21
