"""Server-sent events out of the bytes of an answer, bounded in length and number."""

from __future__ import annotations

from exporter.load.failures import FailureKind, RequestFailedError

_DATA = b"data:"


class EventStream:
    """Cuts the bytes of an answer into the payloads of its `data:` lines.

    SGLang writes each event as one such line and an empty one; comments of proxies are skipped.
    """

    def __init__(self, *, most_line_bytes: int, most_lines: int) -> None:
        """Sets the bounds beyond which an answer is refused."""
        self._most_line_bytes = most_line_bytes
        self._lines_left = most_lines
        self._held = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads completed by these bytes, in order.

        Raises:
            RequestFailedError: UNUSABLE: a line is too long, or there are too many.
        """
        searched = len(self._held)
        self._held += chunk
        payloads = []
        begin = 0
        while (end := self._held.find(b"\n", max(begin, searched))) >= 0:
            line = bytes(self._held[begin:end]) if end - begin <= self._most_line_bytes else None
            self._lines_left -= 1
            if line is None or self._lines_left < 0:
                raise RequestFailedError(FailureKind.UNUSABLE)
            if line.startswith(_DATA):
                payloads.append(line[len(_DATA) :].strip(b" \r"))
            begin = end + 1
        del self._held[:begin]
        if len(self._held) > self._most_line_bytes:
            raise RequestFailedError(FailureKind.UNUSABLE)
        return payloads
