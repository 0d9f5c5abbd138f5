"""Journal files with damage that libsystemd steps over without a word: what can be read is read."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from pathlib import Path

import pytest

from exporter.records import LogLine
from exporter.sources import Position
from exporter.sources.journal.damage import DamageWatch
from exporter.sources.journal.reader import open_file
from exporter.sources.journal.source import JournalMatch, JournalSource
from tests.journal_lives import UNIT, journal_entries

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
