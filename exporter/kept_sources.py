"""Sources that are kept running: each in a task of its own, opened again where it was when it fails.

Other feeds can take their place meanwhile: what stays the same is not touched. Knows neither rules
nor model; what a source emits goes to one function.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from exporter.crashes import Crashes
from exporter.positions import PositionStore
from exporter.records import FatalSourceError, Record, SourceHealth, SourceUnavailableError
from exporter.sources import Emit, Position, Source

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 1.0
LAST_RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Feed:
    """A source and the servers whose log it reads."""

    source: Source
    server: str | None = None
    """`None`: any server (a recording), or none (GPUs)."""
    reads_log: bool = True
    optional: bool = False
    """Whether readiness does not wait for it."""
    made_of: Hashable = None
    """What of the configuration it was made of: one that is equal is the same."""
    inputs: frozenset[Hashable] = frozenset()
    """What it reads: one that shares some of it goes on where this one has read to."""

    @property
    def name(self) -> str:
        """Of the source: label `source`."""
        return self.source.health.name


class _KeptSource:
    """One source and its task."""

    def __init__(self, feed: Feed, crashes: Crashes, read_to: Position | None) -> None:
        self.feed = feed
        self.was_opened = False
        self.has_ended = False
        self._crashes = crashes
        self._read_to = read_to
        self._task: asyncio.Task[None] | None = None
        self._said: str | None = None
        crashes.expect(feed.name)

    def position(self) -> Position | None:
        """Behind everything emitted, also while it is closed; `None` if it cannot be resumed."""
        return self.feed.source.position() or self._read_to

    def start(self, emit: Emit, opened: Callable[[], None]) -> asyncio.Task[None]:
        """Begins; `opened` is called whenever it begins to be read."""
        running = self._run(self._guarded(emit), opened)
        self._task = asyncio.create_task(running, name=self.feed.name)
        return self._task

    async def stop(self) -> None:
        """Ends it; its position stays. May be called twice."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._close()

    async def _run(self, emit: Emit, opened: Callable[[], None]) -> None:
        source, clock = self.feed.source, asyncio.get_running_loop().time
        retry = FIRST_RETRY_SECONDS
        while True:
            started = None
            try:
                await source.open(self._read_to)
                self.was_opened = True
                opened()
                started = clock()
                await source.run(emit)
            except SourceUnavailableError as error:
                self._note_down(str(error))
            except FatalSourceError:
                raise
            except Exception as error:  # noqa: BLE001  # the task's boundary: it is counted and logged
                self._crashes.note(self.feed.name, error)
                self._note_down("failed unexpectedly; see the exporter's log")
            else:
                self._note_end()
                return
            if started is not None and clock() - started > LAST_RETRY_SECONDS:
                retry = FIRST_RETRY_SECONDS
            await self._close()
            await asyncio.sleep(retry)
            retry = min(2 * retry, LAST_RETRY_SECONDS)

    def _guarded(self, emit: Emit) -> Emit:
        """A record that breaks what it is given to costs itself alone."""

        def guarded(record: Record) -> None:
            try:
                emit(record)
            except Exception as error:  # noqa: BLE001  # the record's boundary: counted and logged
                self._crashes.note(self.feed.name, error)

        return guarded

    async def _close(self) -> None:
        try:
            self._read_to = self.position()
            await self.feed.source.close()
        except Exception as error:  # noqa: BLE001  # the task's boundary: it is counted and logged
            self._crashes.note(self.feed.name, error)

    def _note_down(self, message: str) -> None:
        health = self.feed.source.health
        health.up, health.last_error = False, message
        if message != self._said:
            log.warning("%s source=%s", message, health.name)
            self._said = message

    def _note_end(self) -> None:
        health = self.feed.source.health
        health.up, health.last_error = False, "its input has ended"
        log.info("a source ended source=%s lines=%d", health.name, health.lines)


class KeptSources:
    """All sources of the exporter.

    Attributes:
        feeds: The present ones.
        retired: What the sources counted that were replaced.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        emit: Emit,
        *,
        ended: Callable[[Feed], None],
        crashes: Crashes,
        positions: PositionStore | None = None,
    ) -> None:
        """Starts nothing yet; `ended` is told of a source whose input ended for good."""
        self.retired = SourceHealth("retired")
        self._emit = emit
        self._ended = ended
        self._crashes = crashes
        self._positions = positions
        self._stays = False
        self._over: asyncio.Future[None] | None = None
        self._kept = tuple(
            _KeptSource(feed, crashes, positions.position(feed.name) if positions else None)
            for feed in feeds
        )

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """The present ones, in the order of the configuration."""
        return tuple(kept.feed for kept in self._kept)

    async def run(self, *, stays: bool) -> None:
        """Runs every source until canceled, or until all have ended for good unless it `stays`.

        Raises:
            FatalSourceError: Only a new process helps.
        """
        self._stays = stays
        over = self._over = asyncio.get_running_loop().create_future()
        if self._positions is not None and self._positions.damaged:
            for feed in self.feeds:
                if feed.reads_log:
                    feed.source.health.gaps += 1  # where the life before had read to is lost
        for kept in self._kept:
            self._start(kept)
        try:
            await over
        finally:
            self._over = None
            await asyncio.gather(*(kept.stop() for kept in self._kept))

    async def replace(self, feeds: Sequence[Feed]) -> None:
        """Ends what is not among `feeds`, begins what is new there, and leaves the rest alone.

        Nothing is awaited after the old ones have ended: a caller who goes on without waiting
        comes before the first record of a new one.
        """
        wanted = {feed.made_of for feed in feeds}
        leaving = [kept for kept in self._kept if kept.feed.made_of not in wanted]
        await asyncio.gather(*(kept.stop() for kept in leaving))
        staying = {kept.feed.made_of: kept for kept in self._kept if kept not in leaving}
        for kept in leaving:
            self._retire(kept.feed.source.health)
        coming = [self._heir(feed, leaving) for feed in feeds if feed.made_of not in staying]
        self._forget_positions(leaving, coming)
        known = staying | {kept.feed.made_of: kept for kept in coming}
        self._kept = tuple(known[feed.made_of] for feed in feeds)
        for kept in coming:
            self._start(kept)

    def _start(self, kept: _KeptSource) -> None:
        task = kept.start(self._emit, lambda: self._save_start(kept))
        task.add_done_callback(lambda done: self._note_end(kept, done))

    def _note_end(self, kept: _KeptSource, task: asyncio.Task[None]) -> None:
        over = self._over
        if task.cancelled() or over is None or over.done():
            return
        error = task.exception()
        if error is not None:
            over.set_exception(error)
            return
        self._ended(kept.feed)
        kept.has_ended = True
        if not self._stays and all(each.has_ended for each in self._kept):
            over.set_result(None)

    def _heir(self, feed: Feed, leaving: Sequence[_KeptSource]) -> _KeptSource:
        """A new source, behind what one that leaves has read of the same input."""
        before = next((kept for kept in leaving if kept.feed.inputs & feed.inputs), None)
        return _KeptSource(feed, self._crashes, before.position() if before else None)

    def _forget_positions(
        self, leaving: Sequence[_KeptSource], coming: Sequence[_KeptSource]
    ) -> None:
        """A name that now reads something else has no position, and none that nobody has."""
        inputs = {kept.feed.name: kept.feed.inputs for kept in leaving}
        go_on = {k.feed.name for k in coming if k.feed.inputs & inputs.get(k.feed.name, set())}
        present = {kept.feed.name for kept in self._kept if kept not in leaving}
        present |= {kept.feed.name for kept in coming}
        for name in inputs.keys() - present:
            self._crashes.forget(name)
        if self._positions is not None:
            self._positions.forget(({*inputs} | {k.feed.name for k in coming}) - go_on)

    def _retire(self, health: SourceHealth) -> None:
        retired = self.retired
        retired.lines += health.lines
        retired.gaps += health.gaps
        retired.suppressed_messages += health.suppressed_messages
        for reason, count in health.read_refusals.items():
            retired.read_refusals[reason] = retired.read_refusals.get(reason, 0) + count

    def _save_start(self, kept: _KeptSource) -> None:
        if self._positions is not None and (position := kept.position()) is not None:
            self._positions.started(kept.feed.name, position)

    # --- what is known of them -----------------------------------------------------------------

    def positions(self) -> dict[str, Position]:
        """Where each has read to, of those that can go on from there."""
        found = {kept.feed.name: kept.position() for kept in self._kept}
        return {name: position for name, position in found.items() if position is not None}

    def healths(self) -> tuple[SourceHealth, ...]:
        """How each fares."""
        return tuple(feed.source.health for feed in self.feeds)

    def waiting_for(self) -> Mapping[str, str]:
        """Sources that are not read now, with the reason; empty when ready.

        GPUs count only once they were read: without NVML the exporter serves the log alone.
        """
        return {
            kept.feed.name: kept.feed.source.health.last_error or "not opened yet"
            for kept in self._kept
            if not kept.feed.optional
            and not kept.feed.source.health.up
            and (kept.feed.reads_log or kept.was_opened)
        }
