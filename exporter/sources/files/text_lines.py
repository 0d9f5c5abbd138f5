"""A line of text → a `LogLine`, nothing, or a counted refusal."""

from __future__ import annotations

from collections.abc import Callable

from exporter.records import LogLine, Refusal, SourceHealth
from exporter.sources import IsWanted
from exporter.sources.files.container_log import UnwrappedLine


class TextLines:
    """Judges the lines of one server; who wrote a line cannot be known from text.

    Args:
        server: Name in the records.
        is_wanted: Whether a line deserves to become a record.
        health: Where lines, lag and refusals are counted.
        clock: Wall clock, seconds since 1970: the time of lines that carry none.
    """

    def __init__(
        self,
        server: str,
        is_wanted: IsWanted,
        health: SourceHealth,
        clock: Callable[[], float],
    ) -> None:
        self._server = server
        self._is_wanted = is_wanted
        self._health = health
        self._clock = clock

    def record(self, line: UnwrappedLine, *, facts_only: bool = False) -> LogLine | None:
        """The record of a line; `None` if it is unwanted or not whole."""
        health = self._health
        health.lines += 1
        if line.logged_at is not None:
            health.lag_seconds = max(0.0, self._clock() - line.logged_at)
        if not self._is_wanted(line.message):
            return None
        if not line.is_whole:
            health.read_refusals[Refusal.NOT_WHOLE] = (
                health.read_refusals.get(Refusal.NOT_WHOLE, 0) + 1
            )
            return None
        return LogLine(
            server=self._server,
            logged_at=self._clock() if line.logged_at is None else line.logged_at,
            message=line.message.removesuffix(b"\r").decode(errors="replace"),
            facts_only=facts_only,
        )
