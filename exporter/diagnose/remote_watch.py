"""Watches through a running exporter while something goes on, and puts together what it saw.

In: an exporter's recordings, fetched piece by piece; the records of a load of ours. Out: all of
them in time order, on the exporter's clock. Opens no source here.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from exporter.diagnose.live_watch import FILE_SECONDS, TERMINAL_SECONDS
from exporter.diagnose.progress_line import ProgressLine, state_words
from exporter.diagnose.remote_exporter import ExporterError, RemoteExporter
from exporter.recordings.reader import read_records
from exporter.records import (
    GpuIdentity,
    GpuLevels,
    LoadEvent,
    Record,
    ServerFacts,
    StageMap,
    ThroughputReference,
)
from exporter.stopping import stopped

log = logging.getLogger(__name__)

FETCH_SECONDS = 30.0
"""How often what there is by now is fetched, so that little is lost with the exporter."""
MOST_SECONDS = 600
"""How far back an exporter remembers."""
LAG_SECONDS = 5.0
"""The newest seconds are not complete yet: the next piece has them again."""
_CLOCKS_APART_SECONDS = 1.0
_HOLDS_ON = (ServerFacts, StageMap, GpuIdentity, GpuLevels, ThroughputReference)
"""What stands at the head of each piece anew."""

Timed = tuple[float, Record]
"""A record and its place in time."""


class _Piece(NamedTuple):
    """A recording that was fetched, and the instant up to which it is complete."""

    path: Path
    complete_to: float


class RemoteWatch:
    """What an exporter saw since a watch began.

    Attributes:
        was_stopped: A signal ended it.
        trouble: What the exporter failed with when it was asked last; `None`: it answered.
    """

    def __init__(self, exporter: RemoteExporter, folder: Path) -> None:
        """Begins now; what is fetched is put into `folder`."""
        self.was_stopped = False
        self.trouble: str | None = None
        self.began_at = exporter.now()
        self._exporter = exporter
        self._folder = folder
        self._pieces: list[_Piece] = []
        self._complete_to = self.began_at
        self._ours: list[Timed] = []

    def take(self, record: Record) -> None:
        """Takes a record of a load of ours; its instants are put on the exporter's clock."""
        if isinstance(record, LoadEvent):
            ahead = self._exporter.ahead_seconds
            record = replace(record, happened_at=record.happened_at + ahead)
        self._ours.append((self._exporter.now(), record))

    async def until(self, work: Coroutine[Any, Any, None], said: Callable[[], str]) -> None:
        """Fetches pieces until `work` ends or is stopped by a signal; `said`: how far it is.

        Raises:
            ExporterError: Nothing could be fetched, and no load of ours was measured.
        """
        working = asyncio.create_task(work, name="work")
        stopping = asyncio.create_task(stopped(), name="signals")
        following = asyncio.create_task(self._follow(said), name="exporter")
        tasks = [working, stopping, following]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            self.was_stopped = stopping.done()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self.fetch()
        if self.trouble is not None:
            if not self._pieces and not self._ours:
                raise ExporterError(self.trouble)
            log.warning("%s; what was seen until then is used", self.trouble)

    def timed(self) -> Iterator[Timed]:
        """Everything in time order: the exporter's records and ours."""
        ours = sorted(self._ours, key=itemgetter(0))
        yield from heapq.merge(self._seen(), ours, key=itemgetter(0))

    def warn_of_clocks(self) -> None:
        """Says it where the clocks of the two hosts differ."""
        ahead = self._exporter.ahead_seconds
        if abs(ahead) > _CLOCKS_APART_SECONDS:
            log.warning(
                "the exporter's clock is %.1f s %s of this host's; all instants are put on it, "
                "but let both hosts follow a time server",
                abs(ahead),
                "ahead" if ahead > 0 else "behind",
            )

    # --- fetching ------------------------------------------------------------------------------

    async def _follow(self, said: Callable[[], str]) -> None:
        fetched_at = time.monotonic()
        with ProgressLine() as progress:
            while True:
                await asyncio.sleep(TERMINAL_SECONDS if progress.on_terminal else FILE_SECONDS)
                state = await self._state()
                progress.say(f"{said()}, {state}")
                if time.monotonic() - fetched_at >= FETCH_SECONDS:
                    await self.fetch()
                    fetched_at = time.monotonic()

    async def _state(self) -> str:
        try:
            return state_text(await self._exporter.pipeline())
        except ExporterError as error:
            self._note(str(error))
            return "the exporter does not answer"

    async def fetch(self) -> None:
        """Fetches what is new; what goes wrong stands in `trouble`."""
        now = self._exporter.now()
        behind = now - self._complete_to
        if behind > MOST_SECONDS:
            log.warning("%.0f s are missing: the exporter did not answer", behind - MOST_SECONDS)
        path = self._folder / f"{len(self._pieces)}.jsonl.gz"
        try:
            await self._exporter.download(max(1, min(math.ceil(behind), MOST_SECONDS)), path)
        except ExporterError as error:
            self._note(str(error))
            return
        self._note(None)
        self._complete_to = now - LAG_SECONDS
        self._pieces.append(_Piece(path, self._complete_to))

    def _note(self, trouble: str | None) -> None:
        if trouble is not None and self.trouble is None:
            log.warning("%s", trouble)
        self.trouble = trouble

    # --- putting together ----------------------------------------------------------------------

    def _seen(self) -> Iterator[Timed]:
        taken_to = -math.inf
        for number, piece in enumerate(self._pieces, start=1):
            is_last = number == len(self._pieces)
            complete_to = math.inf if is_last else max(taken_to, piece.complete_to)
            with closing(read_records(piece.path)) as reader:
                for at, record in reader.timed():
                    if number > 1 and (at <= taken_to or _is_head(at, record, reader.first_at)):
                        continue
                    if at > complete_to:
                        break
                    yield at, record
            if summary := reader.summary():
                log.warning("%s", summary)
            taken_to = complete_to


def _is_head(at: float, record: Record, first_at: float | None) -> bool:
    """Whether a record only repeats what held before the piece began."""
    return isinstance(record, _HOLDS_ON) and (first_at is None or at <= first_at)


def state_text(answer: Mapping[str, Any]) -> str:
    """Occupancy, running and queued requests of the first pipeline of /api/v1/pipeline."""
    server = _first(answer.get("servers"))
    pipeline = _first(server.get("pipelines"))
    slots = pipeline.get("slots")
    running = slots.get("running_requests") if isinstance(slots, dict) else None
    stages = pipeline.get("stages")
    queues = [
        stage["queued_reqs"]
        for stage in (stages if isinstance(stages, list) else ())
        if isinstance(stage, dict) and isinstance(stage.get("queued_reqs"), int)
    ]
    occupancy = pipeline.get("occupancy_ratio")
    return state_words(
        occupancy if isinstance(occupancy, float | int) else None,
        running if isinstance(running, float | int) else None,
        queues,
    )


def _first(values: object) -> Mapping[str, Any]:
    """The first object of a list; an empty one where there is none."""
    if isinstance(values, list) and values and isinstance(values[0], dict):
        return values[0]
    return {}
