"""Text for a terminal of at most 80 columns, as readable without color. Pure."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

COLUMNS = 80

BOLD, RED, GREEN, YELLOW, DIM = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[2m"
_PLAIN = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Paper:
    """What a text is laid out for. Sentences keep to `columns`; tables need 80."""

    color: bool = False
    columns: int = COLUMNS

    def paint(self, text: str, style: str) -> str:
        """The text in a style, where there is color."""
        return f"{style}{text}{_PLAIN}" if self.color else text

    def wrapped(self, text: str, indent: str = "") -> list[str]:
        """The text in lines that fit; `indent` begins the first, the others stand under its end."""
        return textwrap.wrap(
            text,
            self.columns,
            initial_indent=indent,
            subsequent_indent=" " * len(indent),
            break_on_hyphens=False,
        )

    def apart(self, left: str, right: str) -> str:
        """The space that sets two texts to both ends of a line."""
        return " " * max(self.columns - len(left) - len(right), 1)


WIDE = Paper()
