"""Opens journal files through libsystemd: the one door to the library.

Importing this module raises ImportError where systemd-python is not installed.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import cast

from systemd import id128, journal  # noqa: TID251 - this is the one door

from exporter.records import SourceUnavailableError
from exporter.sources.journal.entries import DATA_THRESHOLD_BYTES, EntryReader

INVALIDATE: int = journal.INVALIDATE
SYSTEM_ROOTS = (Path("/var/log/journal"), Path("/run/log/journal"))


class _Reader(journal.Reader):  # type: ignore[misc]  # systemd-python has no types
    """`journal.Reader` with names for the calls that decode nothing.

    Seen with systemd-python 235 on systemd 252: `_get` gives bytes (the first value) and raises
    KeyError; `_get_all` gives bytes, or a list of them; `_get_cursor` still answers for the last
    entry after `_next` was false, and raises EADDRNOTAVAIL before the first; all are methods in C.
    """

    # The public `get_next` decodes every field of every entry, ten times as slow.
    next_entry = journal.Reader._next  # noqa: SLF001 - see above
    previous_entry = journal.Reader._previous  # noqa: SLF001 - see above
    field = journal.Reader._get  # noqa: SLF001 - see above
    fields = journal.Reader._get_all  # noqa: SLF001 - see above
    realtime_us = journal.Reader._get_realtime  # noqa: SLF001 - see above
    cursor = journal.Reader._get_cursor  # noqa: SLF001 - see above


def open_journal(directory: Path | None, name: str) -> EntryReader:
    """A reader of the files in a directory, or of this machine's own system journal.

    Args:
        directory: `None`: this machine's journal.
        name: Whose journal this is, for error messages.

    Raises:
        SourceUnavailableError: There is no such directory, or nothing in it may be read.
    """
    try:
        _require_a_readable_file(directory)
        if directory is None:
            reader = _Reader(flags=journal.LOCAL_ONLY | journal.SYSTEM_ONLY)
        else:
            reader = _Reader(path=os.fspath(directory))
        # At once: files deleted before the inotify watch exists would stay open (systemd#14695).
        reader.fileno()
    except PermissionError as error:
        remedy = (
            f"add the user to the group systemd-journal (usermod -aG systemd-journal {_user()}) "
            "and log in again"
        )
        if directory is not None:
            remedy = f"make it readable for {_user()}, or {remedy} if that group may read it"
        raise SourceUnavailableError(
            f"cannot read the journal of {name}: {error.strerror or error}: {error.filename}; "
            f"{remedy}"
        ) from error
    except OSError as error:
        where = "this machine" if directory is None else directory
        raise SourceUnavailableError(
            f"cannot read the journal of {name} in {where}: {error.strerror or error}; "
            "is systemd-journald running, and is the directory the right one?"
        ) from error
    reader.data_threshold = DATA_THRESHOLD_BYTES
    return cast(EntryReader, reader)


def open_file(path: Path) -> EntryReader:
    """A reader of one journal file.

    Raises:
        OSError: It cannot be opened; EBADMSG, ENODATA and the like say that it is damaged.
    """
    return cast(EntryReader, _Reader(files=[os.fspath(path)]))


def journal_files(directory: Path | None) -> list[Path]:
    """The files that `open_journal` of the same directory reads, damaged ones included.

    Raises:
        OSError: A directory cannot be listed.
    """
    if directory is not None:
        machines = [path for path in directory.iterdir() if _is_id(path.name) and path.is_dir()]
        return [file for root in (directory, *machines) for file in _files(root, "")]
    roots = [root / id128.get_machine().hex for root in SYSTEM_ROOTS]
    return [file for root in roots if root.exists() for file in _files(root, "system")]


def _files(root: Path, prefix: str) -> list[Path]:
    return [
        path
        for path in root.iterdir()
        if path.name.startswith(prefix) and path.name.endswith((".journal", ".journal~"))
    ]


def _require_a_readable_file(directory: Path | None) -> None:
    """Raises PermissionError if there are journal files and none may be read.

    libsystemd opens such a journal without a word and shows nothing of it.
    """
    refused: PermissionError | None = None
    for path in journal_files(directory):
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except PermissionError as error:
            refused = error
        except FileNotFoundError:  # rotated away meanwhile
            continue
        else:
            return
    if refused is not None:
        raise refused


def _is_id(name: str) -> bool:
    return len(name) == 32 and all(letter in "0123456789abcdef" for letter in name)


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "USER"
