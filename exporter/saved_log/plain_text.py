"""Lines of a saved text log → `LogLine`s; nothing tells which process wrote one.

Comes in: raw lines. Goes out: lines with the best time the log gives them. How the file wraps its
lines is settled by its first stamped ones, whatever a later line imitates.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from exporter.records import LogLine
from exporter.saved_log.wrapping import (
    WRAPPINGS,
    Clock,
    Unwrapped,
    Wrapping,
    instant_of,
    instant_of_stamp,
    uncolored,
    unwrap,
)
from exporter.sglang_log import is_wanted, stamp_of
from exporter.sources.files.container_log import ContainerLog

CONTAINER = "a container runtime's log"
BARE = "plain text"
DEFAULT_SERVER = "sglang"

_TELLS_START = re.compile(
    r"(?:\([^)]{0,99}\) )?\[[^]]{0,99}\] (?P<words>server_args=|(?:Decode|Prefill) batch)"
)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """How a text log wraps and dates its lines.

    Attributes:
        wrapping: `None`: not at all, or as a container runtime does.
        in_container: Docker's json-file or CRI.
        is_fine: Whether its times are finer than a second.
    """

    wrapping: Wrapping | None
    in_container: bool
    is_fine: bool

    def __str__(self) -> str:
        if self.in_container:
            return CONTAINER
        return BARE if self.wrapping is None else self.wrapping.name


def format_of(lines: Sequence[bytes]) -> TextFormat | None:
    """The format of most of these lines that SGLang has stamped; `None` if it stamped none."""
    votes = Counter(found for raw in lines if (found := _format_of_line(raw)) is not None)
    return votes.most_common(1)[0][0] if votes else None


def _format_of_line(raw: bytes) -> TextFormat | None:
    raw = uncolored(raw)
    if (stamp := _stamp(raw)) is not None:
        return TextFormat(None, in_container=False, is_fine="." in stamp)
    inner = ContainerLog().unwrap(raw)
    if (
        inner is not None
        and inner.logged_at is not None
        and _stamp(uncolored(inner.message)) is not None
    ):
        return TextFormat(None, in_container=True, is_fine=True)
    for wrapping in WRAPPINGS:
        found = unwrap(wrapping, raw)
        if found is not None and (stamp := _stamp(found.text)) is not None:
            fine = found.time is not None or "." in stamp
            return TextFormat(wrapping, in_container=False, is_fine=fine)
    return None


def _stamp(text: bytes) -> str | None:
    # The bracket has digits first, or the name of a Ray actor before it.
    return stamp_of(text[:256].decode(errors="replace")) if text[:1] in (b"[", b"(") else None


class PlainText:
    """The lines of one text log.

    Attributes:
        tally: Lines that look like SGLang's and were not used, by reason.
    """

    def __init__(self, found: TextFormat) -> None:
        self.tally: Counter[str] = Counter()
        self._format = found
        self._container_log = ContainerLog()

    def line(self, raw: bytes) -> tuple[float | None, LogLine] | None:
        """A wanted line and its instant; `None` if it is none.

        The instant is `None` where neither the log nor SGLang dates the line.
        """
        found = self._unwrap(uncolored(raw))
        if found is None or not is_wanted(found.text):
            return None
        message = found.text.removesuffix(b"\r").decode(errors="replace")
        server = found.writer or DEFAULT_SERVER
        at = self._instant(message, found.time)
        return at, LogLine(server, at or 0.0, message)

    def _unwrap(self, raw: bytes) -> Unwrapped | None:
        if self._format.in_container:
            inner = self._container_log.unwrap(raw)
            if inner is None:
                return None
            if inner.logged_at is not None and inner.is_whole:
                return Unwrapped(uncolored(inner.message), repr(inner.logged_at))
            found = None
        elif self._format.wrapping is None:
            return Unwrapped(raw)
        else:
            found = unwrap(self._format.wrapping, raw)
        if found is None and is_wanted(raw):
            self.tally["wrapped unlike the others, or cut"] += 1
        return found

    def _instant(self, message: str, time: str | None) -> float | None:
        bracket = stamp_of(message)
        stamp = None if bracket is None else instant_of_stamp(bracket)
        if not self._format.is_fine:
            return None if stamp is None else float(math.floor(stamp))
        wrapping = self._format.wrapping
        clock = Clock.SECONDS if wrapping is None else wrapping.clock
        outer = None if time is None else instant_of(clock, time, stamp)
        return stamp if outer is None else outer


def with_starts(lines: Iterable[tuple[float, LogLine]]) -> Iterator[tuple[float, LogLine]]:
    """The lines, each with the start of its server that it belongs to.

    A log that several starts were appended to tells them apart in no other way than by arguments
    that follow batches. Lines come in time order.
    """
    starts: Counter[str] = Counter()
    has_batches: set[str] = set()
    for at, line in lines:
        found = _TELLS_START.match(line.message)
        if found is not None and found["words"] == "server_args=":
            starts[line.server] += line.server in has_batches
            has_batches.discard(line.server)
        elif found is not None:
            has_batches.add(line.server)
        yield at, line._replace(launch=str(starts[line.server]))
