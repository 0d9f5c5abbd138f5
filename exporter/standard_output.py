"""Standard output: what it can show, and text that is written to it whole or not without a word."""

from __future__ import annotations

import os
import shutil
import sys

LEAST_COLUMNS, MOST_COLUMNS = 40, 80


class CannotPrintError(Exception):
    """Standard output takes nothing; the message says why."""


def check_open() -> None:
    """Checks that there is a standard output, before anything is done for it.

    Raises:
        CannotPrintError: The process was started without one, as by `>&-`.
    """
    if sys.stdout is None:
        raise CannotPrintError("cannot print: standard output is closed")


def put(text: str) -> None:
    """Writes a text, at once.

    Raises:
        CannotPrintError: It is closed, its reader is gone, or the disk behind it is full.
    """
    check_open()
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer must not fail once more at the exit.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise CannotPrintError(f"cannot print: {error.strerror}") from error


def shows_color() -> bool:
    """Whether it is a terminal that understands color, and nobody asked for none."""
    wants_none = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout is not None and sys.stdout.isatty() and not wants_none


def columns() -> int:
    """How wide text for people may be: as the terminal, from 40 to 80 columns."""
    if sys.stdout is None or not sys.stdout.isatty():
        return MOST_COLUMNS
    size = shutil.get_terminal_size((MOST_COLUMNS, 24))
    return min(max(size.columns, LEAST_COLUMNS), MOST_COLUMNS)
