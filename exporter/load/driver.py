"""Drives one load: a closed loop of streaming requests, or an open one at a rate.

Warm-up, then the measured window, then the drain. Single failures are counted and their place in
the loop tries again after a pause; when nothing but failures comes, the load ends itself. It can be
stopped or canceled at any time, and keeps what it measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable

from exporter.load.failures import RequestFailedError
from exporter.load.measurements import Measurements
from exporter.load.pauses import Arrivals, BackOff
from exporter.load.plan import MOST_REQUESTS, MOST_SECONDS, LoadPlan
from exporter.load.prompts import fresh_salt
from exporter.load.result import EndReason, LoadProgress, LoadResult, LoadStage, OnProgress
from exporter.load.streaming import StreamingRequest, open_session
from exporter.load.target import Target, Work, request_body
from exporter.load.window import Window, result_of
from exporter.records import Record, ThroughputReference

PROGRESS_SECONDS = 0.5
RATE_SECONDS = 3.0
FAILURES_IN_A_ROW = 3
LEAST_FAILURES = 8
"""A load ends itself after so many failures in a row: this number, or three rounds of its places."""


class Load:
    """One load against one target, driven once.

    Attributes:
        stage: How far it is.
    """

    def __init__(
        self,
        target: Target,
        plan: LoadPlan,
        *,
        emit: Callable[[Record], None] | None = None,
        on_progress: OnProgress | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Names what is loaded how; `sleep` makes the pauses after failures.

        `emit` never raises; it takes a `LoadEvent` at either end of the measured window and, at concurrency 1, a
        `ThroughputReference`; the warm-up is ordinary traffic before it.
        """
        self.stage = LoadStage.WARM_UP
        self._target = target
        self._plan = plan
        self._emit = emit
        self._on_progress = on_progress
        self._sleep = sleep
        # Wall-clock instants that no step of the clock can shift against each other.
        self._clock_offset = time.time() - time.monotonic()
        self._stage_since = self._now()
        self._measured = Measurements()
        self._window: Window | None = None
        self._work = Work(plan.prompt_tokens, plan.output_tokens, plan.seed, fresh_salt())
        self._arrivals = Arrivals(plan.rate_per_second, plan.seed)
        self._sent = 0
        self._running = 0
        self._failures_in_a_row = 0
        self._ended_by: EndReason | None = None
        self._over = asyncio.Event()

    def _now(self) -> float:
        return time.monotonic() + self._clock_offset

    # --- for the caller ------------------------------------------------------------------------

    async def run(self) -> LoadResult:
        """Drives the load to its end; canceled, it ends cleanly and `result` has what there is."""
        await self._drive()
        result = self.result()
        if self._plan.concurrency == 1 and result.is_whole:
            rate = result.output_tokens_per_second
            if rate:
                self._say(ThroughputReference(1, rate))
        return result

    def stop(self) -> None:
        """Ends the load now; requests under way are cut off, and what was measured stays."""
        self._end(EndReason.STOPPED)

    def result(self) -> LoadResult:
        """What there is so far."""
        return result_of(
            self._plan,
            self._measured,
            self._window,
            now=self._now(),
            ended_by=self._ended_by,
            delayed_arrivals=self._arrivals.delayed,
        )

    # --- stages --------------------------------------------------------------------------------

    async def _drive(self) -> None:
        plan = self._plan
        async with open_session(plan.request_seconds) as session:
            request = StreamingRequest(session, self._target, plan.output_tokens, self._now)
            tasks = [
                asyncio.create_task(self._fill(request, place)) for place in range(plan.concurrency)
            ]
            tasks += [
                asyncio.create_task(self._report()),
                asyncio.create_task(self._arrivals.run()),
            ]
            for task in tasks:
                task.add_done_callback(self._broke)
            try:
                await self._pass_stages()
            finally:
                for task in tasks:
                    task.cancel()
                self._end(EndReason.STOPPED)  # canceled, unless it ended otherwise before
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _broke(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._over.set()

    async def _pass_stages(self) -> None:
        if self._plan.warmup_seconds > 0:
            await self._over_within(self._plan.warmup_seconds)
        if not self._over.is_set() and self._ended_by is None:
            self._window = Window.opened(self._now(), self._measured)
            self._enter(LoadStage.MEASURING)
            self._say(self._window.start_event(self._plan))
            await self._over_within(self._plan.duration_seconds or MOST_SECONDS)
            self._end(EndReason.DURATION)

    async def _over_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    def _enter(self, stage: LoadStage) -> None:
        self.stage, self._stage_since = stage, self._now()

    def _close_window(self) -> None:
        if self._window is not None and self._window.ended_at is None:
            event = self._window.close(self._now(), self._plan, self._measured)
            self._enter(LoadStage.DRAINING)
            self._say(event)

    def _say(self, record: Record) -> None:
        if self._emit is not None:
            self._emit(record)

    def _end(self, reason: EndReason) -> None:
        if self._ended_by is None:
            self._ended_by = reason
        self._close_window()
        self._over.set()

    # --- requests ------------------------------------------------------------------------------

    def _may_send(self) -> bool:
        if self._ended_by is not None or self._sent >= MOST_REQUESTS:
            return False
        planned, window = self._plan.requests, self._window
        if planned is None or window is None:
            return True
        # What failed is made up for: the number is of answers.
        answered = len(self._measured.requests) - window.completed_before
        return answered + self._running < planned

    async def _fill(self, request: StreamingRequest, place: int) -> None:
        """One place of the loop: a request after the other, with pauses after failures."""
        back_off = BackOff(self._plan.seed, place)
        while self._may_send():
            await self._arrivals.next()
            if not self._may_send():
                break
            try:
                await self._send(request)
            except RequestFailedError as error:
                self._note(error)
                if self._may_send():
                    await self._sleep(back_off.next(error.retry_after_seconds))
            else:
                self._failures_in_a_row = 0
                back_off.reset()
        self._drain()

    async def _send(self, request: StreamingRequest) -> None:
        self._sent += 1
        self._running += 1
        try:
            body = request_body(self._target, self._work, self._sent)
            self._measured.requests.append(await request.send(body, self._measured.add_tokens))
        finally:
            self._running -= 1

    def _drain(self) -> None:
        """A place found nothing more to send: the full load is over, the rest is waited for."""
        self._close_window()
        if self._ended_by is None:
            self._ended_by = EndReason.REQUESTS
        if self._running == 0:
            self._over.set()

    def _note(self, error: RequestFailedError) -> None:
        self._measured.add_failure(self._now(), error.kind)
        self._failures_in_a_row += 1
        most = max(LEAST_FAILURES, FAILURES_IN_A_ROW * self._plan.concurrency)
        if self._failures_in_a_row >= most:
            self._end(EndReason.ALL_FAILED)

    # --- progress ------------------------------------------------------------------------------

    async def _report(self) -> None:
        if self._on_progress is None:
            return
        seen: deque[tuple[float, int]] = deque(maxlen=int(RATE_SECONDS / PROGRESS_SECONDS) + 1)
        while True:
            now, tokens = self._now(), self._measured.output_tokens
            seen.append((now, tokens))
            oldest_at, oldest = seen[0]
            rate = (tokens - oldest) / (now - oldest_at) if now > oldest_at else None
            self._on_progress(self._progress(now, rate))
            await asyncio.sleep(PROGRESS_SECONDS)

    def _progress(self, now: float, tokens_per_second: float | None) -> LoadProgress:
        plan, window = self._plan, self._window
        planned = plan.warmup_seconds if window is None else plan.duration_seconds
        return LoadProgress(
            stage=self.stage,
            seconds=now - self._stage_since,
            planned_seconds=None if self.stage is LoadStage.DRAINING else planned,
            concurrency=plan.concurrency,
            running=self._running,
            completed=len(self._measured.requests) - (window.completed_before if window else 0),
            planned_requests=None if window is None else plan.requests,
            output_tokens=self._measured.output_tokens,
            tokens_per_second=tokens_per_second,
            errors=Counter(self._measured.errors),
        )
