"""Text for a terminal of 80 columns, as readable without color. Pure."""

from __future__ import annotations

import textwrap

COLUMNS = 80

BOLD, RED, GREEN, YELLOW, DIM = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[2m"
_PLAIN = "\x1b[0m"


def paint(text: str, style: str, color: bool) -> str:
    """The text in a style, where there is color."""
    return f"{style}{text}{_PLAIN}" if color else text


def wrapped(text: str, indent: str = "") -> list[str]:
    """The text in lines that fit; `indent` begins the first, the others stand under its end."""
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_on_hyphens=False,
    )


def apart(left: str, right: str) -> str:
    """The space that sets two texts to both ends of a line."""
    return " " * max(COLUMNS - len(left) - len(right), 1)
