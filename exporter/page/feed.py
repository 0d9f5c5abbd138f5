"""Looks once a second while somebody watches, and hands the same bytes to all who do.

The text of a look is made once, however many watch. A viewer who does not keep up is let go: it
comes back and says what it saw last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from exporter.api import Json, Past, timeline_json
from exporter.collector import ExporterState
from exporter.page.state import state_json
from exporter.page.verdicts import RunningVerdicts
from exporter.snapshot import Snapshot

if TYPE_CHECKING:
    from exporter.diagnosis.watch import PipelineKey

LOOK_SECONDS = 1.0
JUDGE_SECONDS = 30.0
"""How often the verdict is made anew."""
FIRST_JUDGE_SECONDS = 0.3
"""After the first viewer's page is there."""
SHOWN_SECONDS = 70
"""What a new viewer gets at once: the minute that is drawn, and how far settling may be behind."""
MOST_VIEWERS = 64
HELD_EVENTS = 8
"""Events that wait for one viewer, at most."""


class Watched(Past, Protocol):
    """What the feed needs of `ingest.Ingest`."""

    def snapshot(self) -> Snapshot:
        """The model at this instant."""

    def state(self, snapshot: Snapshot) -> ExporterState:
        """The exporter itself, beside that snapshot."""

    def waiting_for(self) -> Mapping[str, str]:
        """Sources that are not read, with the reason."""

    def crashed(self, task: str, error: Exception) -> None:
        """Counts and logs an exception nobody foresaw."""


class TooManyViewersError(Exception):
    """No further viewer is taken."""


class Viewer:
    """One who watches: events to come, `None` when there will be no more."""

    def __init__(self, let_go: Callable[[], None]) -> None:
        """`let_go` cuts the connection of one who does not read."""
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue(HELD_EVENTS)
        self._let_go = let_go

    def give(self, event: bytes | None) -> None:
        """Adds an event; one for whom too many wait is let go."""
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            self._let_go()


class LiveFeed:
    """The viewers and what they are shown."""

    def __init__(self, watched: Watched, verdicts: RunningVerdicts) -> None:
        """Nothing runs before the first viewer."""
        self._watched = watched
        self._verdicts = verdicts
        self._viewers: set[Viewer] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._shown: dict[PipelineKey, int] = {}
        self._began_at = time.monotonic()

    @contextlib.contextmanager
    def viewing(self, seen: int | None, let_go: Callable[[], None]) -> Iterator[Viewer]:
        """One more viewer; the first event has what is known now.

        Args:
            seen: The epoch second that this viewer has seen last; `None`: nothing.
            let_go: Called once for a viewer who does not keep up.

        Raises:
            TooManyViewersError: There are too many.
        """
        if len(self._viewers) >= MOST_VIEWERS:
            raise TooManyViewersError
        viewer = Viewer(let_go)
        viewer.give(self._first_event(seen))
        self._viewers.add(viewer)
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._look(), name="live page"),
                asyncio.create_task(self._judge(), name="running verdict"),
            ]
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            if not self._viewers:
                self._stop()

    def close(self) -> None:
        """Tells all viewers that nothing more comes."""
        for viewer in self._viewers:
            viewer.give(None)

    def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    def _first_event(self, seen: int | None) -> bytes:
        snapshot = self._watched.snapshot()
        since = snapshot.taken_at - SHOWN_SECONDS
        if seen is not None:
            since = max(since, seen + 1)
        timeline = timeline_json(snapshot, self._watched, since, cells=True)
        if not self._viewers:  # nobody saw anything yet
            self._shown = _newest(timeline)
        return self._event(snapshot, timeline, _newest(timeline))

    def _next_event(self) -> bytes:
        snapshot = self._watched.snapshot()
        since = snapshot.taken_at - SHOWN_SECONDS
        timeline = timeline_json(snapshot, self._watched, since, cells=True, after=self._shown)
        # A pipeline that is gone must not hold back the second by which viewers come back.
        present = {(s.name, p.dp_rank) for s in snapshot.servers for p in s.pipelines}
        self._shown = {key: at for key, at in self._shown.items() if key in present}
        self._shown |= _newest(timeline)
        return self._event(snapshot, timeline, self._shown)

    def _event(self, snapshot: Snapshot, timeline: Json, shown: Mapping[PipelineKey, int]) -> bytes:
        state = state_json(
            snapshot,
            self._watched.state(snapshot),
            self._watched.waiting_for(),
            self._verdicts.latest,
            timeline,
        )
        state["up_seconds"] = round(time.monotonic() - self._began_at, 1)
        name = f"id: {min(shown.values())}\n" if shown else ""
        data = json.dumps(state, separators=(",", ":"))
        return f"{name}event: state\ndata: {data}\n\n".encode()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                event = self._next_event()
            except Exception as error:  # noqa: BLE001  # a bug must not leave the page without news for ever
                self._watched.crashed("live_page", error)
                continue
            for viewer in tuple(self._viewers):
                viewer.give(event)

    async def _judge(self) -> None:
        await asyncio.sleep(FIRST_JUDGE_SECONDS)
        while True:
            try:
                snapshot = self._watched.snapshot()
                keys = [(s.name, p.dp_rank) for s in snapshot.servers for p in s.pipelines]
                await self._verdicts.judge(keys, snapshot.taken_at)
            except Exception as error:  # noqa: BLE001  # the figures are shown without a verdict
                self._watched.crashed("verdict", error)
            await asyncio.sleep(JUDGE_SECONDS)


def _newest(timeline: Json) -> dict[PipelineKey, int]:
    """The newest second of each pipeline that has one."""
    return {
        (pipeline["server"], pipeline["dp_rank"]): pipeline["seconds"][-1]["second"]
        for pipeline in timeline["pipelines"]
        if pipeline["seconds"]
    }
