"""What holds at an instant: facts, maps, cards. Changes come in, the head of a recording goes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from exporter.records import (
    GpuIdentity,
    GpusRemoved,
    GpuState,
    Record,
    ServerFacts,
    ServerRemoved,
    StageMap,
)


class Known:
    """Folds changes in the order they came; what happened and is over leaves no trace."""

    def __init__(self) -> None:
        self._facts: dict[str, ServerFacts] = {}
        self._maps: dict[str, StageMap] = {}
        self._cards: dict[int, GpuIdentity] = {}
        self._down: dict[int, GpuState] = {}

    def copy(self) -> Known:
        """The same, apart from what is folded later."""
        copied = Known()
        copied._facts, copied._maps = dict(self._facts), dict(self._maps)  # our own
        copied._cards, copied._down = dict(self._cards), dict(self._down)  # our own
        return copied

    def fold(self, record: Record) -> None:
        """Takes a change."""
        if isinstance(record, ServerFacts):
            before = self._facts.get(record.server)
            if before is not None and not record.new_launch:
                record = replace(record, facts={**before.facts, **record.facts})
            self._facts[record.server] = replace(record, new_launch=False)
        elif isinstance(record, StageMap):
            self._maps[record.server] = record
        elif isinstance(record, GpuIdentity):
            self._cards[record.gpu] = record
        elif isinstance(record, GpuState):
            self._down.pop(record.gpu, None)
            if not record.up:
                self._down[record.gpu] = record

        elif isinstance(record, ServerRemoved):
            self._facts.pop(record.server, None)
            self._maps.pop(record.server, None)
        elif isinstance(record, GpusRemoved):
            self._cards.clear()
            self._down.clear()

    def head(self, at: float) -> Iterator[Record]:
        """What a recording that begins at an instant says first."""
        yield from self._facts.values()
        yield from self._maps.values()
        yield from self._cards.values()
        yield from (replace(state, changed_at=at) for state in self._down.values())
