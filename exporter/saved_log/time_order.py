"""Lines of a saved log in time order; those with stamps of whole seconds spread over their second.

Lines of one second all carry its beginning: taken as it stands, hundreds of batches would have
happened at once, and then none for a second. Spread evenly in the order they stand in, they are
at most a second off; what is finer than that must not be read from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from exporter.recordings.format import TimedRecord
from exporter.recordings.order import TimeOrder
from exporter.records import LogLine, Record

STAMP_SECONDS = 1.0
"""How fine SGLang's own stamps are by default."""

_MOST_HELD_LINES = 50_000

NumberedLine = tuple[int, float | None, LogLine]
"""Line number, instant (`None`: that of the lines around it), line."""


def in_order(
    lines: Iterable[NumberedLine], refuse: Callable[[], None]
) -> Iterator[tuple[float, LogLine]]:
    """The lines with their instants, oldest first.

    Up to a second of disorder is put right; `refuse` is told of each line that lies further back,
    or alone far ahead.
    """

    def refused(_number: int, _record: Record, _fault: str) -> None:
        refuse()

    order = TimeOrder(refused, None)
    for number, at, line in lines:
        yield from _dated(order.add(number, TimedRecord(at, line), len(line.message)))
    yield from _dated(order.finish())


def _dated(released: Iterator[tuple[float, Record]]) -> Iterator[tuple[float, LogLine]]:
    for at, record in released:
        if isinstance(record, LogLine):
            yield at, record._replace(logged_at=at)


def spread(lines: Iterable[tuple[float, LogLine]]) -> Iterator[tuple[float, LogLine]]:
    """The lines of each second, evenly over it."""
    second: float | None = None
    held: list[LogLine] = []
    for at, line in lines:
        if held and (at != second or len(held) >= _MOST_HELD_LINES):
            yield from _spread_over(second or 0.0, held)
            held = []
        second = at
        held.append(line)
    if held:
        yield from _spread_over(second or 0.0, held)


def _spread_over(second: float, lines: list[LogLine]) -> Iterator[tuple[float, LogLine]]:
    for number, line in enumerate(lines):
        at = second + STAMP_SECONDS * (number + 0.5) / len(lines)
        yield at, line._replace(logged_at=at)
