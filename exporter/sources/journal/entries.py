"""A journal entry → a `LogLine`, nothing, or a counted refusal; knows journald's fields only.

Comes in: a reader that stands on an entry. Goes out: a line, and counts in `SourceHealth`.
Measured with systemd 252 (entries of 18 fields): reading MESSAGE alone 1.3 µs an entry, each
further field 0.9 µs (1.2 µs when it is missing), all fields at once 2.7 µs. So every entry is
asked for two fields, and a wanted one for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from exporter.records import LogLine, Refusal, SourceHealth
from exporter.sources import IsWanted

SUPPRESSED_MESSAGE_ID = "a596d6fe7bfa4994828e72309e95d61e"
"""SD_MESSAGE_JOURNAL_DROPPED: journald's rate limit dropped messages (N_DROPPED of them)."""

SCHEDULER_TITLE = "sglang::scheduler"
DATA_THRESHOLD_BYTES = 65536
"""libsystemd may cut a compressed field here; journald itself cuts lines at 48 KiB (LineMax)."""

CONTINUED_BREAKS = frozenset({b"line-max", b"nul", b"true"})
"""Breaks after which the next entry of the same writer is the rest of the same line.

Not `pid-change`: there the rest is usually an empty line, which journald drops (progress bars), so
the next entry is a whole one. What a forger gains is a line of the same process, which only the
bounds of its values can stop anyway.
"""
MAX_CONTINUED_WRITERS = 64

Fields = Mapping[str, "bytes | list[bytes]"]


class Entry(Protocol):
    """What is asked of the entry that a reader stands on; OSError when its file is damaged."""

    def field(self, name: str, /) -> bytes:
        """The first value of a field.

        Raises:
            KeyError: It has none of that name.
        """

    def fields(self) -> Fields:
        """All fields."""

    def realtime_us(self) -> int:
        """When journald took it, in microseconds since 1970."""


class EntryReader(Entry, Protocol):
    """What is used of `systemd.journal.Reader`. Not thread-safe, closing included."""

    fileno: Callable[[], int]
    reliable_fd: Callable[[], bool]
    get_timeout_ms: Callable[[], int]
    process: Callable[[], int]
    close: Callable[[], None]
    add_match: Callable[..., None]
    add_disjunction: Callable[[], None]
    flush_matches: Callable[[], None]
    seek_head: Callable[[], None]
    seek_tail: Callable[[], None]
    seek_realtime: Callable[[int], None]
    seek_cursor: Callable[[str], None]
    test_cursor: Callable[[str], bool]
    next_entry: Callable[[], bool]
    previous_entry: Callable[[], bool]
    cursor: Callable[[], str]


class MatchField(StrEnum):
    """The journal field by which the entries of a server are told."""

    UNIT = "_SYSTEMD_UNIT"
    CONTAINER = "CONTAINER_NAME"
    IDENTIFIER = "SYSLOG_IDENTIFIER"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalMatch:
    """Which entries belong to a server; exactly one of the three.

    Args:
        unit: Name of a systemd unit with its suffix, e.g. `sglang.service`.
        container: Name of a container whose log driver is journald.
        identifier: Syslog identifier, e.g. of `systemd-cat -t`.

    Raises:
        ValueError: None or several are given.
    """

    unit: str | None = None
    container: str | None = None
    identifier: str | None = None

    def __post_init__(self) -> None:
        if [self.unit, self.container, self.identifier].count(None) != 2:
            raise ValueError("one of unit, container and identifier is needed")

    @property
    def field(self) -> MatchField:
        """The field that is compared."""
        if self.unit is not None:
            return MatchField.UNIT
        return MatchField.CONTAINER if self.container is not None else MatchField.IDENTIFIER

    @property
    def value(self) -> str:
        """What it is compared with: the server's name in the journal."""
        return self.unit or self.container or self.identifier or ""

    def __str__(self) -> str:
        return f"{self.field}={self.value}"


class TornEntryError(OSError):
    """An entry is damaged, or was looked at while its file was rotated: then it is whole later."""


class CutLines:
    """Tells entries that are only a piece of a line, cut by journald or by a container runtime.

    The rest carries no mark of its own (seen with systemd 252 for `line-max` and `nul`; Docker
    before 20.10 and Podman likewise), so that it is known only by its writer.
    """

    def __init__(self, match: JournalMatch) -> None:
        if match.field is MatchField.CONTAINER:
            self.mark = "CONTAINER_PARTIAL_MESSAGE"
            self._writer = ("CONTAINER_ID_FULL", "PRIORITY")
        else:
            self.mark = "_LINE_BREAK"
            self._writer = ("_STREAM_ID", "_PID")
        self._continued: dict[tuple[bytes | None, ...], None] = {}

    def is_piece(self, reader: Entry) -> bool:
        """Whether the entry the reader stands on is no whole line; call once for every entry."""
        try:
            mark = reader.field(self.mark)
        except KeyError:
            return bool(self._continued) and self.is_piece_marked(reader, None)
        return self.is_piece_marked(reader, mark)

    def is_piece_marked(self, reader: Entry, mark: bytes | None) -> bool:
        """The same, where the entry's field `mark` is read already."""
        if mark is None and not self._continued:
            return False
        writer = tuple(field_or_none(reader, name) for name in self._writer)
        is_rest = writer in self._continued
        self._continued.pop(writer, None)
        if mark in CONTINUED_BREAKS and writer[0] is not None:
            if len(self._continued) >= MAX_CONTINUED_WRITERS:
                del self._continued[next(iter(self._continued))]
            self._continued[writer] = None
        return is_rest or mark is not None


class EntryDecoder:
    """Turns the entries of one server into lines and counts what it does not turn into one."""

    def __init__(
        self, server: str, match: JournalMatch, is_wanted: IsWanted, health: SourceHealth
    ) -> None:
        self._server = server
        self._match_field, self._match_value = match.field, match.value.encode()
        self._is_wanted = is_wanted
        self._health = health
        self._cut_lines = CutLines(match)
        self._unit = match.unit

    def stand_on(self, reader: Entry) -> None:
        """Takes note of the entry before the first to be decoded: the next may be its rest."""
        self._cut_lines.is_piece(reader)

    def decode(self, reader: Entry, *, facts_only: bool = False) -> LogLine | None:
        """The line of the entry the reader stands on; `None` if it is unwanted or refused.

        Raises:
            OSError: The entry cannot be read; the ones behind it may.
            TornEntryError: It lacks what every entry has.
        """
        try:
            message = reader.field("MESSAGE")
        except KeyError as error:
            if field_or_none(reader, "_TRANSPORT") != b"journal":
                # Only a client of the native socket may leave it out.
                raise TornEntryError("an entry without a message") from error
            message = b""
        if message.startswith(b"Suppressed ") and self._is_about_suppression(reader):
            return None
        self._health.lines += 1
        if not self._is_wanted(message):
            self._cut_lines.is_piece(reader)
            return None
        fields = reader.fields()
        is_piece = self._cut_lines.is_piece_marked(reader, first(fields, self._cut_lines.mark))
        if first(fields, self._match_field) != self._match_value:
            # Let in by the match for journald's own message id, which anybody may write.
            return None
        if is_piece or "CONTAINER_PARTIAL_ID" in fields or len(message) >= DATA_THRESHOLD_BYTES:
            refusals = self._health.read_refusals
            refusals[Refusal.NOT_WHOLE] = refusals.get(Refusal.NOT_WHOLE, 0) + 1
            return None
        if self._match_field is not MatchField.UNIT:
            self._unit = _text(first(fields, "_SYSTEMD_UNIT")) or self._unit
        pid, title, launch = _writer(
            first(fields, "_PID"),
            first(fields, "_CMDLINE"),
            first(fields, "_TRANSPORT"),
            first(fields, "_SYSTEMD_INVOCATION_ID"),
            "CONTAINER_NAME" in fields,
        )
        text, logged_at = message.decode(errors="replace"), reader.realtime_us() / 1e6
        return LogLine(self._server, logged_at, text, pid, title, launch, facts_only)

    def _is_about_suppression(self, reader: Entry) -> bool:
        """Whether this is journald's word about dropped messages; those of our unit are counted."""
        if field_or_none(reader, "MESSAGE_ID") != SUPPRESSED_MESSAGE_ID.encode():
            return False
        fields = reader.fields()
        if first(fields, "_TRANSPORT") != b"driver":
            return False  # a line of our own unit that only says so
        units = {first(fields, name) for name in ("OBJECT_SYSTEMD_UNIT", "UNIT", "_SYSTEMD_UNIT")}
        if self._unit is not None and (
            self._unit.encode() in units
            or (first(fields, "MESSAGE") or b"").endswith(b" from " + self._unit.encode())
        ):
            count = _text(first(fields, "N_DROPPED")) or ""
            self._health.suppressed_messages += int(count) if count.isdecimal() else 1
        return True


@lru_cache(maxsize=256)
def _writer(
    pid: bytes | None,
    command_line: bytes | None,
    transport: bytes | None,
    invocation: bytes | None,
    in_container: bool,
) -> tuple[int | None, str | None, str | None]:
    """PID, title and launch of the process that wrote an entry, as far as its fields tell them.

    Behind a container's log driver, `_PID` and the invocation are the runtime's.
    """
    title = _title(_text(command_line) or "", transport, in_container=in_container)
    number = _text(pid) or ""
    is_writers_own = not in_container or title is not None
    return (
        int(number) if is_writers_own and number.isdecimal() else None,
        title,
        None if in_container else _text(invocation),
    )


def _title(command_line: str, transport: bytes | None, *, in_container: bool) -> str | None:
    """The command line of the process that wrote an entry, from journald's trusted `_CMDLINE`.

    "" when journald could not read it, which is not a scheduler. `None` where the writer is not
    the server's own process: behind a container's log driver, or any other transport than the
    unit's stdout, unless the writer itself is titled as a scheduler. Nothing but the entry itself
    is asked: a PID's early entries carry its parent's command line, and PIDs come back.
    """
    if transport == b"stdout" and not in_container:
        return command_line
    return command_line if command_line.startswith(SCHEDULER_TITLE) else None


def field_or_none(reader: Entry, name: str) -> bytes | None:
    """The first value of one field of the current entry; `None` if it has none of that name."""
    try:
        return reader.field(name)
    except KeyError:
        return None


def first(fields: Fields, name: str) -> bytes | None:
    """The first value of a field; journald's own fields have one, a client's may have several."""
    value = fields.get(name)
    return value[0] if isinstance(value, list) else value


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
