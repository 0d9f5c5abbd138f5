"""One log file that is read as it grows, and known again after a rename or a copy."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from exporter.sources.files.container_log import (
    MAX_LINE_BYTES,
    ContainerLog,
    LineSplitter,
    UnwrappedLine,
)

WINDOW_BYTES: Final = 1024
"""A file is known by the bytes before the place it was read to: they hold time stamps, while the
first lines of a server's log are the same at every start."""

FileKey = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """How far a file was read, for the state file; holds no log text.

    Attributes:
        path: Where it was.
        key: Device and inode.
        offset: Behind the last line delivered whole; reading goes on here.
        seen_to: Behind the last byte seen.
        window_bytes: How many bytes before `seen_to` the digest covers.
        window_sha256: Their digest.
    """

    path: str
    key: FileKey
    offset: int
    seen_to: int
    window_bytes: int
    window_sha256: str

    def as_json(self) -> dict[str, Any]:
        """For the position."""
        return {**asdict(self), "key": list(self.key)}

    @classmethod
    def from_json(cls, data: Any) -> Bookmark:
        """What `as_json` made.

        Raises:
            ValueError: It is none of ours.
        """
        try:
            device, inode = data["key"]
            bookmark = cls(**{**data, "key": (device, inode)})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("not a bookmark of a file") from error
        numbers = (device, inode, bookmark.offset, bookmark.seen_to, bookmark.window_bytes)
        texts = (bookmark.path, bookmark.window_sha256)
        if not (
            all(isinstance(number, int) and number >= 0 for number in numbers)
            and all(isinstance(text, str) for text in texts)
            and bookmark.offset <= bookmark.seen_to
        ):
            raise ValueError("not a bookmark of a file")
        return bookmark


class FollowedFile:
    """An open log file and the place it was read to.

    Attributes:
        path: Where it was seen last.
        key: Device and inode.
        is_matching: Whether it had a name that matches when that was last looked for.
        retired_at: When it was renamed or deleted, or last written to since, by the caller's clock;
            `None` while it is where it is expected.

    Raises:
        OSError: It cannot be opened.
        ValueError: It is no regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_matching = True
        self.retired_at: float | None = None
        # Without blocking: a named pipe that matches a glob would hold up everything.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise ValueError(f"{path} is no regular file")
        self.key: FileKey = (status.st_dev, status.st_ino)
        self.begin_at(0)

    def begin_at(self, offset: int) -> None:
        """Reads from here on, as if a line began here."""
        self._splitter = LineSplitter(offset)
        self._pieces_at: int | None = None
        self._container_log = ContainerLog()
        self._window = self._bytes_before(offset)
        self._modified_ns = -1

    @property
    def offset(self) -> int:
        """Behind the last line delivered whole."""
        return self._splitter.line_at if self._pieces_at is None else self._pieces_at

    def is_at_its_path(self) -> bool:
        """Whether its path still names this file."""
        try:
            status = self.path.stat()
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self.key

    def is_linked(self) -> bool:
        """Whether it has a name still."""
        return os.fstat(self._descriptor).st_nlink > 0

    def modified_at(self) -> float:
        """When it was last written to, seconds since 1970."""
        return os.fstat(self._descriptor).st_mtime

    def has_unread(self) -> bool:
        """Whether there are bytes behind the last one seen."""
        return self._size() > self._splitter.seen_to

    def has_changed(self) -> bool:
        """Whether it was written to since the last `read`, perhaps to the same size."""
        status = os.fstat(self._descriptor)
        return status.st_size != self._splitter.seen_to or status.st_mtime_ns != self._modified_ns

    def was_rewritten(self) -> bool:
        """Whether it was truncated, or written anew, since the last `read`."""
        return (
            self._size() < self._splitter.seen_to
            or self._bytes_before(self._splitter.seen_to) != self._window
        )

    def go_to_end(self) -> None:
        """Leaves out what is there, but for a line that is just being written."""
        size = self._size()
        tail = os.pread(self._descriptor, MAX_LINE_BYTES, max(0, size - MAX_LINE_BYTES))
        newline_at = tail.rfind(b"\n")
        self.begin_at(size - len(tail) + newline_at + 1)
        if newline_at < 0 and size > len(tail):
            self.begin_at(size)
            self._splitter = LineSplitter(size, is_mid_line=True)

    def read(self, max_bytes: int) -> list[UnwrappedLine]:
        """The next whole lines, in order; the last one waits for its newline."""
        self._modified_ns = os.fstat(self._descriptor).st_mtime_ns
        data = os.pread(self._descriptor, max_bytes, self._splitter.seen_to)
        lines = []
        for started_at, text, is_whole in self._splitter.split(data):
            line = (
                self._unwrapped(started_at, text)
                if is_whole
                else UnwrappedLine(text, None, is_whole=False)
            )
            if line is not None:
                lines.append(line)
        self._window = self._bytes_before(self._splitter.seen_to)
        return lines

    def bookmark(self) -> Bookmark:
        """Where reading goes on, even after the file was truncated."""
        return Bookmark(
            path=str(self.path),
            key=self.key,
            offset=self.offset,
            seen_to=self._splitter.seen_to,
            window_bytes=len(self._window),
            window_sha256=hashlib.sha256(self._window).hexdigest(),
        )

    def continues(self, bookmark: Bookmark) -> bool:
        """Whether this file holds what was seen up to a bookmark."""
        if self._size() < bookmark.seen_to:
            return False
        window = self._bytes_before(bookmark.seen_to)
        window = window[max(0, len(window) - bookmark.window_bytes) :]
        return hashlib.sha256(window).hexdigest() == bookmark.window_sha256

    def close(self) -> None:
        """Frees the descriptor; may be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _unwrapped(self, started_at: int, text: bytes) -> UnwrappedLine | None:
        line = self._container_log.unwrap(text)
        if not self._container_log.is_mid_line:
            self._pieces_at = None
        elif self._pieces_at is None:
            self._pieces_at = started_at
        return line

    def _size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def _bytes_before(self, offset: int) -> bytes:
        length = min(WINDOW_BYTES, offset)
        return os.pread(self._descriptor, length, offset - length)
