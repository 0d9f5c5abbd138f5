"""When a journal that is followed is opened anew, though nothing is wrong with it."""

from __future__ import annotations

from collections.abc import Callable

QUIET_SECONDS = 60.0
"""A quiet one: finds directories that were made or replaced since."""
EMPTY_SECONDS = 5.0
"""One that has no entry of the server yet."""
BUSY_SECONDS, BUSY_ENTRIES = 60.0, 20_000
"""A busy one, after both: libsystemd keeps mapped what was read, half a MB per 1,000 entries."""


class Reopening:
    """Counts since a journal was opened; `quiet_seconds` in place of `QUIET_SECONDS`."""

    def __init__(self, monotonic: Callable[[], float], quiet_seconds: float) -> None:
        self._monotonic = monotonic
        self._quiet_seconds = quiet_seconds
        self.note_opened()

    def note_opened(self) -> None:
        """It was opened now."""
        self._opened_at = self._read_at = self._monotonic()
        self._entries = 0

    def note_read(self, entries: int) -> None:
        """So many were read just now."""
        self._read_at = self._monotonic()
        self._entries += entries

    def is_due(self, *, is_empty: bool) -> bool:
        """Whether it is time; ask while nothing is unread."""
        now = self._monotonic()
        patience = min(self._quiet_seconds, EMPTY_SECONDS) if is_empty else self._quiet_seconds
        is_busy = self._entries >= BUSY_ENTRIES and now - self._opened_at >= BUSY_SECONDS
        return is_busy or now - self._read_at >= patience
