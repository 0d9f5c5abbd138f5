"""An entry of `journalctl -o json` → a `LogLine`, by the same rules as from the journal itself.

journalctl writes a value with odd bytes as a list of numbers, a field that occurs several times as
a list of values, and one of more than 4 KiB as `null` unless `--all` is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from exporter.records import LogLine, SourceHealth
from exporter.sglang_log import is_wanted
from exporter.sources.journal.entries import EntryDecoder, Fields, JournalMatch, first

_MOST_DECODERS = 1024
_DEFAULT_IDENTIFIER = "sglang"


class BadEntryError(ValueError):
    """A line that is no entry of a journal; the message repeats nothing of it."""


class JsonEntry:
    """One exported entry, with what is asked of an entry in a journal."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Takes the fields as they were read.

        Raises:
            BadEntryError: One of them holds what journalctl cannot have written.
        """
        self.misses_text = "MESSAGE" in values and values["MESSAGE"] is None
        self._fields: dict[str, bytes | list[bytes]] = {
            name: _value(value) for name, value in values.items() if value is not None
        }
        time = first(self._fields, "__REALTIME_TIMESTAMP") or b""
        if not (time.isdigit() and len(time) <= 17):
            raise BadEntryError("no time of a journal")
        self._realtime_us = int(time)
        self._fields.setdefault("SYSLOG_IDENTIFIER", _DEFAULT_IDENTIFIER.encode())

    def field(self, name: str) -> bytes:
        """The first value of a field.

        Raises:
            KeyError: It has none of that name.
        """
        value = self._fields[name]
        return value[0] if isinstance(value, list) else value

    def fields(self) -> Fields:
        """All fields."""
        return self._fields

    def realtime_us(self) -> int:
        """When journald took it, in microseconds since 1970."""
        return self._realtime_us


def _value(value: object) -> bytes | list[bytes]:
    if isinstance(value, list) and value and not all(isinstance(item, int) for item in value):
        return [_single(item) for item in value if item is not None] or b""
    return _single(value)


def _single(value: object) -> bytes:
    try:
        if isinstance(value, str):
            return value.encode(errors="surrogatepass")
        if isinstance(value, list):
            return bytes(value)
    except (ValueError, TypeError) as error:
        raise BadEntryError("a value that is no text and no bytes") from error
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value).encode()
    raise BadEntryError("a value that is no text and no bytes")


class JournalExport:
    """The entries of one export, which may be of several units.

    Attributes:
        health: Refusals and suppressed messages, counted as from a journal.
        without_text: Entries whose text journalctl left out.
    """

    def __init__(self, pick: JournalMatch | None = None) -> None:
        """Reads the entries that `pick` names; `None`: those of all servers."""
        self.health = SourceHealth("journal export")
        self.without_text = 0
        self._pick = pick
        self._decoders: dict[tuple[str, JournalMatch], EntryDecoder] = {}

    @property
    def writers(self) -> int:
        """Units, containers and identifiers whose entries were read."""
        return len(self._decoders)

    def line(self, raw: bytes) -> tuple[float, LogLine] | None:
        """A wanted line and its instant; `None` if the entry is none.

        Raises:
            BadEntryError: It is no entry of a journal.
        """
        entry = _entry(raw)
        server, match = _writer(entry.fields())
        if self._pick is not None and not _is_picked(self._pick, entry.fields()):
            return None
        if entry.misses_text:
            self.without_text += 1
            return None
        key = (server, match)
        decoder = self._decoders.get(key)
        if decoder is None:
            if len(self._decoders) >= _MOST_DECODERS:
                del self._decoders[next(iter(self._decoders))]
            decoder = EntryDecoder(server, match, is_wanted, self.health)
            self._decoders[key] = decoder
        line = decoder.decode(entry)
        return None if line is None else (line.logged_at, line)


def is_entry(raw: bytes) -> bool:
    """Whether a line looks like an exported entry."""
    return _inner(raw).startswith(b"{") and b'"__REALTIME_TIMESTAMP"' in raw


def _inner(raw: bytes) -> bytes:
    """The object itself: json-seq and json-sse put something before it."""
    return raw.removeprefix(b"\x1e").removeprefix(b"data: ")


def _entry(raw: bytes) -> JsonEntry:
    # Not chained: the decoder's errors carry the text they failed on.
    try:
        values = json.loads(_inner(raw).decode(errors="replace"))
    except (ValueError, RecursionError):
        raise BadEntryError("not JSON") from None
    if not isinstance(values, dict):
        raise BadEntryError("no object")
    return JsonEntry(values)


def _writer(fields: Fields) -> tuple[str, JournalMatch]:
    """The server that wrote an entry, as it would be configured for the journal itself."""
    container, unit, user_unit, identifier = (
        (first(fields, name) or b"").decode(errors="replace")
        for name in (
            "CONTAINER_NAME",
            "_SYSTEMD_UNIT",
            "_SYSTEMD_USER_UNIT",
            "SYSLOG_IDENTIFIER",
        )
    )
    if container:
        return container, JournalMatch(container=container)
    if user_unit:
        return user_unit.removesuffix(".service"), JournalMatch(unit=unit or user_unit)
    if unit.endswith(".service"):
        return unit.removesuffix(".service"), JournalMatch(unit=unit)
    return identifier or _DEFAULT_IDENTIFIER, JournalMatch(identifier=identifier)


def _is_picked(pick: JournalMatch, fields: Fields) -> bool:
    names = [str(pick.field)] + ["_SYSTEMD_USER_UNIT"] * (pick.unit is not None)
    return pick.value.encode() in {first(fields, name) for name in names}
