"""Reads journald's export format, as `journalctl -o export` writes it."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).parent / "data"
REAL_JOURNALS = ("pp8_default", "pp4_mmb8_i41", "pp4_burst_i7_iters")


def real_journal(name: str) -> Iterator[dict[str, bytes]]:
    """The entries of one of the real servers' journals, oldest first."""
    with gzip.open(DATA / "sglang_journal" / f"{name}.export.gz") as file:
        yield from export_entries(file.read())


def export_entries(data: bytes) -> Iterator[dict[str, bytes]]:
    """Entries of an export stream; a value with odd bytes stands behind its length."""
    entry: dict[str, bytes] = {}
    position = 0
    while position < len(data):
        end = data.index(b"\n", position)
        line, position = data[position:end], end + 1
        name, equals, value = line.partition(b"=")
        if not line:
            if entry:
                yield entry
            entry = {}
        elif equals:
            entry[name.decode()] = value
        else:
            length = int.from_bytes(data[position : position + 8], "little")
            entry[line.decode()] = data[position + 8 : position + 8 + length]
            position += 8 + length + 1
    if entry:
        yield entry
