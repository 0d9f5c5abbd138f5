r"""Unwraps what container runtimes put around a line, told line by line.

    {"log":"text\n","stream":"stdout","time":"2026-09-24T10:31:46.123456789Z"}     Docker json-file
    2026-09-24T10:31:46.123456789+00:00 stdout F text                              CRI

Anything else is plain text and passes as it is. Long lines come in pieces (Docker: `log` without
its newline, from 16 KiB on; CRI: tag P) and are put together again, so that text behind a cut never
stands at the first column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

MAX_LINE_BYTES: Final = 65536
MAX_STREAMS: Final = 8

_CRI = re.compile(
    rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[^ ]*) (?P<stream>stdout|stderr) (?P<tag>[PF])[^ ]* ?"
)
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", flags=re.ASCII)


@dataclass(frozen=True, slots=True)
class UnwrappedLine:
    """A line without its wrapping.

    Attributes:
        message: The text, without newline.
        logged_at: When the runtime took it, seconds since 1970; `None` for plain text.
        is_whole: False if it was too long; the text is then only its beginning.
    """

    message: bytes
    logged_at: float | None
    is_whole: bool = True


class LineSplitter:
    """Cuts a stream of bytes into lines, each waiting for its newline.

    Attributes:
        seen_to: Behind the last byte taken.
        line_at: Where the line that waits for its newline began.
    """

    def __init__(self, at: int = 0, *, is_mid_line: bool = False) -> None:
        self.seen_to = self.line_at = at
        self._partial = b""
        self._is_skipping = is_mid_line

    def split(self, data: bytes) -> Iterator[tuple[int, bytes, bool]]:
        """Start, text and wholeness of the lines that `data` ends, and of one grown too long."""
        *ended, rest = data.split(b"\n")
        for piece in ended:
            text, started_at = self._partial + piece, self.line_at
            self.seen_to += len(piece) + 1
            self.line_at, self._partial = self.seen_to, b""
            was_skipping, self._is_skipping = self._is_skipping, False
            if not was_skipping:
                yield started_at, text, True
        self.seen_to += len(rest)
        if self._is_skipping:
            return
        self._partial += rest
        if len(self._partial) > MAX_LINE_BYTES:
            text, self._partial, self._is_skipping = self._partial[:MAX_LINE_BYTES], b"", True
            yield self.line_at, text, False


class ContainerLog:
    """Puts the lines of one file together; remembers unfinished ones by stream."""

    def __init__(self) -> None:
        self._pieces: dict[str, bytes] = {}

    @property
    def is_mid_line(self) -> bool:
        """Whether pieces of a line wait for its rest."""
        return bool(self._pieces)

    def unwrap(self, raw: bytes) -> UnwrappedLine | None:
        """The line that `raw` is or completes; `None` if more of it follows."""
        if raw.startswith(b'{"log":'):
            return self._from_docker(raw)
        found = _CRI.match(raw)
        if found is None:
            return UnwrappedLine(raw, None)
        return self._put_together(
            found["stream"].decode(),
            raw[found.end() :],
            _instant(found["time"].decode(errors="replace")),
            is_end=found["tag"] == b"F",
        )

    def _from_docker(self, raw: bytes) -> UnwrappedLine | None:
        try:
            entry = json.loads(raw)
            text, stream, time = entry["log"], entry.get("stream", ""), entry.get("time", "")
            piece = text.encode(errors="surrogatepass")
        except (ValueError, KeyError, AttributeError, RecursionError):
            return UnwrappedLine(raw, None)
        is_end = piece.endswith(b"\n")
        return self._put_together(
            str(stream), piece[:-1] if is_end else piece, _instant(str(time)), is_end=is_end
        )

    def _put_together(
        self, stream: str, piece: bytes, logged_at: float | None, *, is_end: bool
    ) -> UnwrappedLine | None:
        text = self._pieces.pop(stream, b"") + piece
        if is_end:
            is_whole = len(text) <= MAX_LINE_BYTES
            return UnwrappedLine(text[:MAX_LINE_BYTES], logged_at, is_whole)
        if len(self._pieces) < MAX_STREAMS:
            # One byte over the bound marks it as too long without keeping the rest.
            self._pieces[stream] = text[: MAX_LINE_BYTES + 1]
        return None


def _instant(text: str) -> float | None:
    """Seconds since 1970 of an RFC 3339 time; `None` if it is none."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    try:
        whole = datetime.fromisoformat(found[1] + found[3].replace("Z", "+00:00"))
    except ValueError:
        return None
    return whole.astimezone(UTC).timestamp() + float(found[2] or 0)
