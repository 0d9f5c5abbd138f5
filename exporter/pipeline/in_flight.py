"""Evidence → the time in which requests were in flight.

In flight is the time between two pieces of evidence at most 5 s apart (a batch line, a stage that
works), and while the last line's queue is not empty or a known load runs. Silence after the last
evidence is unknown, neither idle nor bubble: a server that drained prints nothing, and a herd
whose lines come 12 s apart prints no more. Pure: no clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque

from exporter.records import Batch, GpuProcesses, LoadEvent, LoadPhase, Mode

BRIDGED_SECONDS = 5.0
"""Two pieces of evidence further apart than this leave the time between them unknown."""
LATE_SECONDS = 2.0
"""Lines and loads may come this much after others of the same instant."""
PROBE_SECONDS = 1.0
"""Work this close to a health probe's line is the probe's."""

_REMEMBERED_SECONDS = 120.0
_COPIES_SECONDS = 0.2  # the stages print their copies of one line within this time

Span = tuple[float, float]


def is_probe(batch: Batch) -> bool:
    """Whether a line may be a health probe: the prefill of one request, nothing else around.

    sglang 0.4.9 to 0.5.23: `/health_generate` (and `/health`) send a request of one token while the
    engine is idle; every stage prints a Prefill line for it.
    """
    return (
        batch.new_seqs == 1
        and batch.mode is Mode.PREFILL
        and batch.running_reqs == 0
        and batch.queued_reqs == 0
        and not batch.pending_tokens
    )


class _Queue:
    """Since when requests wait, on whose word."""

    __slots__ = ("alive_at", "pid", "since")

    def __init__(self, since: float, pid: int | None) -> None:
        self.since = since
        self.pid = pid
        self.alive_at: float | None = None


class InFlight:
    """Folds the evidence of one pipeline (one dp_rank).

    Attributes:
        settled_until: Up to here every instant is decided: in flight, or unknown for good.
        seconds: Time in flight up to there.
    """

    def __init__(self) -> None:
        self.settled_until = -math.inf
        self.seconds = 0.0
        self._newest_at = -math.inf
        self._chains: list[list[float]] = []  # [first, last] evidence, apart more than bridged
        self._held: list[Span] = []  # loads that ended
        self._queue: _Queue | None = None
        self._line_at = -math.inf
        self._load_since: float | None = None
        self._probes: deque[float] = deque()
        self._last_probe: float | None = None
        self._work: deque[Span] = deque()

    # --- evidence ------------------------------------------------------------------------------

    def fold_batch(self, batch: Batch) -> None:
        """Takes a batch line, of any stage: all print the same queue."""
        at = batch.logged_at
        self._newest_at = max(self._newest_at, at)
        if is_probe(batch):
            if not self._probes or at - self._probes[-1] > _COPIES_SECONDS:
                self._probes.append(at)
            self._last_probe = self._probes[-1]
        else:
            self._adopt_probe(batch)
            self._add(at, at)
        if batch.queued_reqs is not None and at >= self._line_at:
            self._line_at = at
            self._fold_queue(batch.queued_reqs, at, batch.pid)

    def _adopt_probe(self, batch: Batch) -> None:
        """What looked like a probe was a request after all if it went on to decode."""
        probe, self._last_probe = self._last_probe, None
        if probe is None or batch.mode is not Mode.DECODE:
            return
        if 0.0 <= batch.logged_at - probe <= BRIDGED_SECONDS:
            if probe in self._probes:
                self._probes.remove(probe)
            self._add(probe, probe)

    def _fold_queue(self, queued_reqs: int, at: float, pid: int | None) -> None:
        if queued_reqs == 0:
            self._end_queue(at)
        elif self._queue is None:
            self._queue = _Queue(at, pid)
        else:
            self._queue.pid = pid

    def _end_queue(self, at: float) -> None:
        if self._queue is not None:
            self._add(self._queue.since, max(at, self._queue.since))
            self._queue = None

    def fold_processes(self, record: GpuProcesses) -> None:
        """A queue ends when the scheduler that printed it has left the GPUs.

        It then held until the process was last seen; what came after is unknown.
        """
        queue = self._queue
        if queue is None or queue.pid is None:
            return
        if any(process.pid == queue.pid for process in record.processes):
            queue.alive_at = record.seen_at
        elif queue.alive_at is not None and record.gpus:
            self._end_queue(max(queue.alive_at, self._line_at, self.settled_until))

    def fold_load(self, event: LoadEvent) -> None:
        """A driven load is a flight from its start to its end."""
        at = event.happened_at
        self._newest_at = max(self._newest_at, at)
        if event.phase is LoadPhase.START:
            if self._load_since is None:
                self._load_since = at
        elif self._load_since is not None:
            self._held.append((self._load_since, max(at, self._load_since)))
            self._load_since = None

    def end_launch(self, at: float) -> None:
        """The processes that held the queue are gone, or go: none survives an exception."""
        self._end_queue(max(min(at, self._newest_at), self._line_at, self.settled_until))
        self._last_probe = None

    def add_work(self, start: float, end: float) -> None:
        """A stage worked between these instants; spans come in time order."""
        self._work.append((start, end))

    def _add(self, start: float, end: float) -> None:
        """Joins evidence to the chains it is close enough to."""
        chains = self._chains
        if chains and chains[-1][0] <= start <= chains[-1][1] + BRIDGED_SECONDS:
            chains[-1][1] = max(chains[-1][1], end)  # by far the most: the newest goes on
            return
        first = last = bisect_left(chains, start - BRIDGED_SECONDS, key=lambda chain: chain[1])
        while last < len(chains) and chains[last][0] <= end + BRIDGED_SECONDS:
            start, end = min(start, chains[last][0]), max(end, chains[last][1])
            last += 1
        chains[first:last] = [[start, end]]

    # --- decisions -----------------------------------------------------------------------------

    def settle(self, now: float, work_until: float) -> None:
        """Decides what can be decided.

        `now` is the newest instant of any record; `work_until` how far the stages' work is known.
        """
        self._newest_at = max(self._newest_at, now)
        lines_until = self._newest_at - LATE_SECONDS
        known_until = min(work_until, lines_until) - PROBE_SECONDS
        self._take_work(known_until)
        self._settle_to(self._decided_until(known_until, lines_until))

    def close(self, at: float) -> None:
        """Decides everything up to `at`: no more evidence comes."""
        self._newest_at = max(self._newest_at, at)
        self._take_work(math.inf)
        self._settle_to(at)

    def _take_work(self, known_until: float) -> None:
        while self._work and self._work[0][1] <= known_until:
            for start, end in self._without_probes(*self._work.popleft()):
                self._add(start, end)

    def _without_probes(self, start: float, end: float) -> list[Span]:
        parts = []
        for probe in sorted(self._probes):
            if probe + PROBE_SECONDS <= start:
                continue
            if probe - PROBE_SECONDS > start:
                parts.append((start, min(probe - PROBE_SECONDS, end)))
            start = max(start, probe + PROBE_SECONDS)
            if start >= end:
                return parts
        return [*parts, (start, end)]

    def _decided_until(self, known_until: float, lines_until: float) -> float:
        """The end of the last chain begun by then; beyond it only once nothing can join it."""
        decided = -math.inf
        for start, end in self._chains:
            if start <= max(known_until, decided):
                decided = max(decided, end)
        if known_until > decided + BRIDGED_SECONDS:
            decided = known_until
        for start, end in self._all_held(math.inf):
            if start <= decided:
                decided = max(decided, min(end, lines_until))
        return decided

    def _all_held(self, until: float) -> list[Span]:
        held = list(self._held)
        if self._queue is not None:
            held.append((self._queue.since, until))
        if self._load_since is not None:
            held.append((self._load_since, until))
        return sorted(held)

    def _settle_to(self, until: float) -> None:
        if until <= self.settled_until:
            return
        self.seconds += sum(end - start for start, end in self.spans(self.settled_until, until))
        self.settled_until = until
        oldest = until - _REMEMBERED_SECONDS
        self._chains = [chain for chain in self._chains if chain[1] >= oldest]
        self._held = [span for span in self._held if span[1] >= oldest]
        while self._probes and self._probes[0] < oldest:
            self._probes.popleft()

    # --- answers -------------------------------------------------------------------------------

    def spans(self, start: float, end: float) -> list[Span]:
        """The time in flight between two instants, apart and in order, as known now.

        Exact within the last two minutes before `settled_until`.
        """
        pieces = [(first, last) for first, last in self._chains] + self._all_held(end)
        joined: list[list[float]] = []
        for first, last in sorted(pieces):
            left, right = max(first, start), min(last, end)
            if right <= left:
                continue
            if joined and left <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], right)
            else:
                joined.append([left, right])
        return [(left, right) for left, right in joined]

    def is_now(self, now: float) -> bool:
        """Whether requests are in flight at `now`, as far as the evidence reaches."""
        newest = max((chain[1] for chain in [*self._chains, *self._work]), default=-math.inf)
        held = self._queue is not None or self._load_since is not None
        return held or now - newest <= BRIDGED_SECONDS
