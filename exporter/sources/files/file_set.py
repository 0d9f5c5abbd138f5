"""The files that match a server's globs, through renames, truncation and restarts."""

from __future__ import annotations

import glob
import os
import pwd
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from exporter.sources.files.followed_file import Bookmark, FileKey, FollowedFile

RETIRED_SECONDS: Final = 60.0
"""A renamed or deleted file may be written to until its writer opens the new one."""
COMPRESSED: Final = (".gz", ".xz", ".zst", ".bz2")


class FileSet:
    """Files to read, oldest first where one is the successor of another.

    Args:
        patterns: Globs, `**` included.
        lost: Told in words when unread lines may be gone.
        monotonic: Clock for pauses.

    Attributes:
        has_moved: Whether a file was renamed or deleted since the last `scan`.
        refusal: Which file may not be read and the remedy; `None` if all may.
    """

    def __init__(
        self, patterns: Sequence[str], lost: Callable[[str], None], monotonic: Callable[[], float]
    ) -> None:
        self.refusal: str | None = None
        self.has_moved = False
        self._patterns = tuple(patterns)
        self._lost = lost
        self._monotonic = monotonic
        self._files: dict[FileKey, FollowedFile] = {}
        self._copies: set[FileKey] = set()

    def __len__(self) -> int:
        return len(self._files)

    def newest(self) -> FollowedFile | None:
        """The file written to last."""
        return max(self._files.values(), key=FollowedFile.modified_at, default=None)

    def bookmarks(self) -> list[Bookmark]:
        """How far each file was read, of those that can be found again."""
        return [file.bookmark() for file in self._files.values() if file.is_linked()]

    def matches(self, path: str) -> bool:
        """Whether a file is there now, under a name that one of the globs matches."""
        return Path(path) in self._matching()

    def take_up(self, bookmark: Bookmark) -> None:
        """Goes on where a bookmark stands, wherever that file is now."""
        original = _opened(Path(bookmark.path))
        if original is not None and original.key == bookmark.key and original.continues(bookmark):
            original.begin_at(bookmark.offset)
            self._add(original)
            return
        rest = _find_rest(bookmark)
        if rest is not None:
            self._retire(rest)
        elif bookmark.seen_to > 0:
            self._lost(f"{bookmark.path} was replaced or truncated; unread lines may be lost")
        if original is not None and original.key in self._files:
            original.close()
        elif original is not None:
            self._add(original)

    def scan(self, *, from_start: bool) -> None:
        """Takes up files that match and are not known yet, at their start or at their end."""
        self.refusal = None
        self.has_moved = False
        matching: set[FileKey] = set()
        for path in self._matching():
            try:
                status = path.stat()
                key = (status.st_dev, status.st_ino)
                matching.add(key)
                if key in self._files:
                    self._files[key].path = path
                elif key not in self._copies:
                    self._adopt(FollowedFile(path), from_start=from_start)
            except PermissionError as error:
                self.refusal = (
                    f"cannot read {path}: {error.strerror}; let {_user()} read it "
                    f"(setfacl -m u:{_user()}:r FILE), or run the exporter as a user who may"
                )
            except (OSError, ValueError):
                continue  # Gone again, or a directory.
        for file in self._files.values():
            file.is_matching = file.key in matching

    def to_read(self) -> Iterator[FollowedFile]:
        """Files that were written to; those that match no more first, to be read to their end."""
        now = self._monotonic()
        for file in self._files.values():
            if file.is_matching and file.is_at_its_path():
                file.retired_at = None
            elif file.retired_at is None:
                file.retired_at = now
                self.has_moved = True
        for file in sorted(self._files.values(), key=lambda file: file.retired_at is None):
            if file.has_changed():
                if file.retired_at is not None:
                    file.retired_at = now
                yield self._rest_of(file) if file.was_rewritten() else file
            elif file.retired_at is not None and now - file.retired_at >= RETIRED_SECONDS:
                self._drop(file)

    def close(self) -> None:
        """Closes all files; may be called twice."""
        for file in list(self._files.values()):
            self._drop(file)

    def _rest_of(self, file: FollowedFile) -> FollowedFile:
        """What to read first of a truncated file: what a copy holds beyond what was read."""
        bookmark = file.bookmark()
        rest = _find_rest(bookmark)
        file.begin_at(0)
        if rest is None:
            self._lost(f"{file.path} was truncated; unread lines may be lost")
            return file
        self._retire(rest)
        return rest

    def _adopt(self, file: FollowedFile, *, from_start: bool) -> None:
        if not from_start:
            file.go_to_end()
        elif any(mark.seen_to > 0 and file.continues(mark) for mark in self.bookmarks()):
            # What a copying rotation leaves behind under a name that matches, too.
            self._copies.add(file.key)
            file.close()
            return
        self._add(file)

    def _retire(self, file: FollowedFile) -> None:
        file.retired_at = self._monotonic()
        self._add(file)

    def _add(self, file: FollowedFile) -> None:
        known = self._files.get(file.key)
        if known is not None:
            known.close()
        self._files[file.key] = file

    def _drop(self, file: FollowedFile) -> None:
        file.close()
        self._files.pop(file.key, None)

    def _matching(self) -> Iterator[Path]:
        for pattern in self._patterns:
            for name in sorted(glob.iglob(pattern, recursive=True)):
                if not name.endswith(COMPRESSED):
                    yield Path(name)


def _find_rest(bookmark: Bookmark) -> FollowedFile | None:
    """The file of a bookmark under another name, or a copy of it; placed where reading goes on."""
    found: FollowedFile | None = None
    try:
        paths = [entry for entry in Path(bookmark.path).parent.iterdir() if entry.is_file()]
    except OSError:
        return None
    for path in sorted(paths):
        file = None if path.name.endswith(COMPRESSED) else _opened(path)
        if file is None:
            continue
        is_copy = bookmark.seen_to > 0 and found is None and str(path) != bookmark.path
        if file.continues(bookmark) and (is_copy or file.key == bookmark.key):
            if found is not None:
                found.close()
            found = file
        else:
            file.close()
    if found is not None:
        found.begin_at(bookmark.offset)
    return found


def _opened(path: Path) -> FollowedFile | None:
    try:
        return FollowedFile(path)
    except (OSError, ValueError):
        return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "USER"
