"""Which facts of a server outlast which: a person's, then what it answers, then what it printed.

Records are folded in the order they come, so the better facts are folded again behind lesser ones.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from exporter.records import FactValue, ServerFacts

CONFIGURATION = "configuration"
ANSWER = "server_info"


@dataclass(slots=True)
class _Held:
    """What was told of one server in its present launch."""

    printed: dict[str, FactValue] = field(default_factory=dict)
    answered: ServerFacts | None = None
    configured: ServerFacts | None = None

    def without_configuration(self, key: str) -> FactValue:
        """A fact as the server tells it; `None` if it does not."""
        answered = {} if self.answered is None else self.answered.facts
        return answered.get(key, self.printed.get(key))


class FactOrder:
    """Remembers, for every server, the facts that outlast others."""

    def __init__(self) -> None:
        self._servers: dict[str, _Held] = {}

    def better_than(self, record: ServerFacts) -> list[ServerFacts]:
        """Facts that outrank those of a record just folded, in the order to fold them again."""
        held = self._servers.setdefault(record.server, _Held())
        if record.new_launch:
            held.printed, held.answered = {}, None
        if record.origin == CONFIGURATION:
            held.configured = record
            return []
        better = [held.configured]
        if record.origin == ANSWER:
            held.answered = record
        else:
            held.printed.update(record.facts)
            better.insert(0, held.answered)
        return [replace(one, known_at=record.known_at) for one in better if one is not None]

    def withdrawn(self, server: str, facts: Mapping[str, FactValue]) -> dict[str, FactValue] | None:
        """What holds instead of configured facts that `facts` no longer name.

        Returns:
            By fact, as the server tells it, or `None`; all of it `None` if nothing has changed.
        """
        held = self._servers.get(server, _Held())
        before = {} if held.configured is None else held.configured.facts
        if before == facts:
            return None
        return {key: held.without_configuration(key) for key in before if key not in facts}

    def forget(self, server: str) -> None:
        """Drops a server."""
        self._servers.pop(server, None)
