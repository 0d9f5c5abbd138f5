"""Logs what changed, once: the method a stage is known by, what a source has to say.

Methods may alternate for a moment while levels are learned: only what holds is worth a line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from exporter.records import Method, SourceHealth
from exporter.snapshot import Snapshot

log = logging.getLogger(__name__)

SETTLED_LOOKS = 3
"""Looks in a row at which the new method must be found."""

_Stage = tuple[str, int, int]


class HintLog:
    """Says once what a source that is read has not found yet, and what to check."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def look(self, healths: Iterable[SourceHealth]) -> None:
        """Takes note of every source's hint now."""
        present = {health.name: health for health in healths}
        self._told = {name: hint for name, hint in self._told.items() if name in present}
        for health in present.values():
            hint = health.last_error
            if health.up and hint and self._told.get(health.name) != hint:
                self._told[health.name] = hint
                log.warning("%s source=%s", hint, health.name)


class MethodLog:
    """Remembers the method of each stage; looked at every few seconds."""

    def __init__(self) -> None:
        self._told: dict[_Stage, Method] = {}
        self._seen: dict[_Stage, tuple[Method, int]] = {}

    def look(self, snapshot: Snapshot) -> None:
        """Takes note of every stage's method now."""
        present = {server.name for server in snapshot.servers}
        self._told = {stage: told for stage, told in self._told.items() if stage[0] in present}
        self._seen = {stage: seen for stage, seen in self._seen.items() if stage[0] in present}
        for server in snapshot.servers:
            for pipeline in server.pipelines:
                for stage in pipeline.stages:
                    if stage.method is not None:
                        self._note((server.name, pipeline.dp_rank, stage.pp_rank), stage.method)

    def _note(self, stage: _Stage, method: Method) -> None:
        before, looks = self._seen.get(stage, (method, 0))
        looks = looks + 1 if method is before else 1
        self._seen[stage] = (method, looks)
        if looks == SETTLED_LOOKS and self._told.get(stage) is not method:
            log.info(
                "working share is known by %s, before by %s server=%s dp_rank=%d pp_rank=%d",
                method.value,
                self._told.get(stage, "nothing"),
                *stage,
            )
            self._told[stage] = method
