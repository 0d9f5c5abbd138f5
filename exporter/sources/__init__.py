"""Where records come from: one file a source, none knows another.

A source is opened, then run. `ingest` starts it again when it raises; what it counted stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from exporter.records import Record, SourceHealth

Emit = Callable[[Record], None]
"""Takes one record; called on the event loop's thread, returns quickly, never raises."""

Position = dict[str, Any]
"""Where a source has read to, as JSON; only the source that made it understands it."""

IsWanted = Callable[[bytes], bool]
"""Whether the bytes of a log message deserve to become a record (`sglang_log.is_wanted`)."""


class Source(Protocol):
    """One place records come from."""

    health: SourceHealth

    async def open(self, position: Position | None) -> None:
        """Begins at a saved position, or where the configuration says if there is none.

        Raises:
            SourceUnavailableError: It cannot be read now; the message names the remedy.
        """

    async def run(self, emit: Emit) -> None:
        """Emits records until canceled, or until the input ends for good.

        Raises:
            SourceUnavailableError: It broke; open it again, later.
        """

    def position(self) -> Position | None:
        """The position behind everything emitted so far; `None` if it cannot be resumed."""

    async def close(self) -> None:
        """Frees what `open` took; may be called twice."""
