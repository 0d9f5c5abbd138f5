"""What stands before a line in a saved log, and the time it gives the line. Pure.

    Nov 30 12:00:01 host sglang[4242]: text                     journalctl, syslog (short)
    Nov 30 12:00:01.123456 host sglang[4242]: text              short-precise
    2026-11-30T12:00:01.123456+0000 host sglang[4242]: text     short-iso, short-iso-precise, rsyslog
    Mon 2026-11-30 12:00:01 UTC host sglang[4242]: text         short-full, with-unit
    [ 1234.567890] host sglang[4242]: text                      short-monotonic
    1796039201.123456 host sglang[4242]: text                   short-unix
    2026-11-30T12:00:01.123456789Z text                         docker logs -t, kubectl --timestamps
    sglang-1  | text                                            docker compose logs
    [pod/kimi-0/sglang] text                                    kubectl logs --prefix

A file has one of these, or none: what is wrapped otherwise is text that somebody else printed, so
that a line which quotes a wrapping never stands for one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto


class Clock(Enum):
    """How the time before a line is to be read."""

    NONE = auto()
    """There is none, or none with a date and better than whole seconds."""
    ABSOLUTE = auto()
    WITHIN_HOUR = auto()
    """Minutes and seconds count; date and zone are those of SGLang's own stamp."""
    SECONDS = auto()
    """A number of seconds since some instant."""


@dataclass(frozen=True, slots=True)
class Wrapping:
    """One way in which lines are wrapped.

    Attributes:
        name: For people.
    """

    name: str
    pattern: re.Pattern[bytes]
    clock: Clock = Clock.NONE


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A line without its wrapping.

    Attributes:
        text: What the server printed.
        time: The time before it, where it is finer than a second; else `None`.
        writer: Who printed it by the wrapping's word; `None` where it does not say.
    """

    text: bytes
    time: str | None = None
    writer: str | None = None


_DAY_TIME = rb"\d\d:\d\d:\d\d"
_FRACTION = rb"(?:[.,]\d{1,9})?"
_ISO = rb"(?P<time>\d{4}-\d\d-\d\dT" + _DAY_TIME + _FRACTION + rb"(?:Z|[+-]\d\d:?\d\d))"
_WRITER = rb" [!-~]{1,255} (?P<writer>[!-9;-Z^-~]{1,64})(?:\[\d{1,10}\])?: "
_SERVICE = rb"(?P<writer>[A-Za-z0-9][\w.-]{0,63}) +\| "
_POD = rb"\[pod/(?P<writer>[a-z0-9][a-z0-9.-]{0,252})/[a-z0-9-]{1,63}\] "
_COLOR = re.compile(rb"\x1b\[[0-9;:]{0,32}m")

WRAPPINGS = (
    Wrapping("journalctl's short-iso", re.compile(_ISO + _WRITER), Clock.ABSOLUTE),
    Wrapping(
        "journalctl's short",
        re.compile(
            rb"[^ ]{2,12} {1,2}\d{1,2} (?P<time>" + _DAY_TIME + rb"(?:\.\d{1,6})?)" + _WRITER
        ),
        Clock.WITHIN_HOUR,
    ),
    Wrapping(
        "journalctl's short-full",
        re.compile(rb"[^ ]{2,12} \d{4}-\d\d-\d\d " + _DAY_TIME + rb" [!-~]{1,9}" + _WRITER),
    ),
    Wrapping(
        "journalctl's short-monotonic",
        re.compile(rb"\[ *(?P<time>\d{1,12}\.\d{6})\]" + _WRITER),
        Clock.SECONDS,
    ),
    Wrapping(
        "journalctl's short-unix",
        re.compile(rb"(?P<time>\d{1,12}\.\d{6})" + _WRITER),
        Clock.SECONDS,
    ),
    Wrapping("docker logs -t", re.compile(_ISO + rb" "), Clock.ABSOLUTE),
    Wrapping("docker compose logs -t", re.compile(_SERVICE + _ISO + rb" "), Clock.ABSOLUTE),
    Wrapping("docker compose logs", re.compile(_SERVICE)),
    Wrapping("kubectl logs --prefix --timestamps", re.compile(_POD + _ISO + rb" "), Clock.ABSOLUTE),
    Wrapping("kubectl logs --prefix", re.compile(_POD)),
)
"""The ones with more before the text stand first."""


def uncolored(raw: bytes) -> bytes:
    """The line without what colors it on a terminal (SGR sequences)."""
    return _COLOR.sub(b"", raw) if b"\x1b" in raw else raw


def unwrap(wrapping: Wrapping, raw: bytes) -> Unwrapped | None:
    """The line inside `raw`; `None` if it is not wrapped in this way."""
    found = wrapping.pattern.match(raw)
    if found is None:
        return None
    groups = found.groupdict()
    time, writer = groups.get("time"), groups.get("writer")
    fine = time is not None and (b"." in time or b"," in time)
    return Unwrapped(
        raw[found.end() :],
        time.decode() if time is not None and fine else None,
        writer.decode() if writer is not None else None,
    )


def instant_of(clock: Clock, time: str, stamp: float | None) -> float | None:
    """The instant that a time before a line names; `None` if it is none.

    `stamp` is that of SGLang's own bracket: some clocks say no hour.
    """
    try:
        match clock:
            case Clock.ABSOLUTE:
                return datetime.fromisoformat(time.replace(",", ".")).timestamp()
            case Clock.SECONDS:
                return float(time)
            case Clock.WITHIN_HOUR if stamp is not None:
                return _within_hour(time, stamp)
    except (ValueError, OverflowError):
        pass
    return None


_ZONE_SECONDS = 900.0
"""Zones differ by whole quarters of an hour."""


def _within_hour(time: str, stamp: float) -> float:
    minutes, seconds = time.split(":")[1:]
    into = (60.0 * int(minutes) + float(seconds)) % _ZONE_SECONDS
    half = _ZONE_SECONDS / 2.0
    return stamp - ((stamp - into + half) % _ZONE_SECONDS - half)


def instant_of_stamp(stamp: str) -> float | None:
    """The instant of SGLang's own stamp, taken as UTC: it is local time and names no zone.

    Before SGLang 0.3.4 it had no date either; then it counts from the first day of 1970.
    """
    text = stamp if "-" in stamp else f"1970-01-01 {stamp}"
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
