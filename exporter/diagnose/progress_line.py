"""Says on stderr how far something is: on a terminal in one line, rewritten in place.

Log records that come meanwhile stand on lines of their own.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from types import TracebackType

COLUMNS = 79


class ProgressLine:
    """One line of progress, from entering to leaving.

    Attributes:
        on_terminal: Whether it is rewritten in place; elsewhere each text is a line that stays.
    """

    def __init__(self) -> None:
        """Writes nothing yet."""
        self.on_terminal = sys.stderr.isatty()
        self._handlers = tuple(logging.getLogger().handlers) if self.on_terminal else ()

    def __enter__(self) -> ProgressLine:
        for handler in self._handlers:
            handler.addFilter(self._make_way)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handler in self._handlers:
            handler.removeFilter(self._make_way)
        self._clear()

    def say(self, text: str) -> None:
        """Shows how far it is now."""
        line = text[:COLUMNS]
        sys.stderr.write(f"\r{line:<{COLUMNS}}" if self.on_terminal else line + "\n")
        sys.stderr.flush()

    def _make_way(self, _record: logging.LogRecord) -> bool:
        self._clear()
        return True

    def _clear(self) -> None:
        if self.on_terminal:
            sys.stderr.write(f"\r{'':{COLUMNS}}\r")
            sys.stderr.flush()


def state_words(occupancy: float | None, running: float | None, queues: Sequence[int]) -> str:
    """What a pipeline does, for a progress line; `?` is not known."""
    share = "?" if occupancy is None else f"{occupancy:.0%}"
    requests = "?" if running is None else f"{running:.0f}"
    return f"occupancy {share}, running {requests}, queue {max(queues) if queues else '?'}"
