"""The lines of a file that may hold anything: compressed or not, cut short, endless.

In: a path. Out: numbered lines of bounded length. Memory is bounded whatever the file holds.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

LONGEST_LINE_BYTES = 1 << 20
_CHUNK_BYTES = 64 << 10
_GZIP_MAGIC = b"\x1f\x8b"


class NumberedLines:
    """Lines with their numbers from 1, without their ends, split at newlines only.

    Attributes:
        damage: What cut the file short; `None` if it was read to its end. What could be read before
            the damage was handed out, but for an unfinished last line.
    """

    def __init__(self, path: Path, refuse: Callable[[int, str], None]) -> None:
        """Opens the file; `refuse` is told of each line that is too long to be handed out.

        Whether it is compressed is told by its first bytes, not by its name.

        Raises:
            OSError: It cannot be opened.
        """
        self.damage: str | None = None
        self._refuse = refuse
        self._raw = path.open("rb")
        self._file: io.BufferedReader | gzip.GzipFile = self._raw
        if self._raw.peek(2)[:2] == _GZIP_MAGIC:
            self._file = gzip.GzipFile(fileobj=self._raw, mode="rb")

    def position_bytes(self) -> int | None:
        """How much of the file was read so far; `None` of a pipe, and after its end."""
        return self._raw.tell() if not self._raw.closed and self._raw.seekable() else None

    def close(self) -> None:
        """Closes the file; may be called twice."""
        self._file.close()
        self._raw.close()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        number, pending, skipping = 1, b"", False
        for chunk in self._chunks():
            *whole, pending = (pending + chunk).split(b"\n")
            for line in whole:
                if skipping or len(line) > LONGEST_LINE_BYTES:
                    self._refuse(number, f"longer than {LONGEST_LINE_BYTES} bytes")
                else:
                    yield number, line
                skipping = False
                number += 1
            if len(pending) > LONGEST_LINE_BYTES:
                skipping, pending = True, b""
        if skipping:
            self._refuse(number, f"longer than {LONGEST_LINE_BYTES} bytes")
        elif pending and self.damage is None:
            yield number, pending

    def _chunks(self) -> Iterator[bytes]:
        while self.damage is None:
            try:
                chunk = self._file.read1(_CHUNK_BYTES)
            except EOFError:
                self.damage = "the compressed data ends early; what came before was used"
            except (OSError, zlib.error) as error:
                self.damage = f"unreadable from here on ({error}); what came before was used"
            else:
                if not chunk:
                    return
                yield chunk
