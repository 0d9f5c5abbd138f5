"""GET /api/v1/recording: what was seen of late, as a file of recording format v1.

The event loop only passes on what a thread has written; two clients at once are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from aiohttp import web

from exporter.recent.records import RecentRecording

MOST_AT_ONCE = 2
ANSWER_SECONDS = 60.0
"""A client that reads more slowly is cut off: it must not keep others out."""
_RETRY_SECONDS = 5


class RecordingDownload:
    """Answers requests for recordings, a few at a time."""

    def __init__(self, recording: Callable[[int], RecentRecording]) -> None:
        """`recording` gives the newest seconds as they are now."""
        self._recording = recording
        self._running = 0

    async def answer(self, request: web.Request, seconds: int) -> web.StreamResponse:
        """The newest `seconds`, streamed; 503 while others are answered."""
        if self._running >= MOST_AT_ONCE:
            return web.Response(
                status=503,
                text="others are downloading recordings; try again in a moment\n",
                headers={"Retry-After": str(_RETRY_SECONDS)},
            )
        self._running += 1
        try:
            return await self._stream(request, self._recording(seconds))
        finally:
            self._running -= 1

    async def _stream(self, request: web.Request, found: RecentRecording) -> web.StreamResponse:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(found.since))
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/gzip",
                "Content-Disposition": f'attachment; filename="sglang-pipeline-{stamp}.jsonl.gz"',
                "Cache-Control": "no-store",
            }
        )
        pieces = found.compressed()
        # A client that went away or sleeps: its connection is of no use, and no news.
        with contextlib.suppress(ConnectionError, TimeoutError):
            await response.prepare(request)
            if request.method == "HEAD":
                return response
            async with asyncio.timeout(ANSWER_SECONDS):
                while (piece := await asyncio.to_thread(_next, pieces)) is not None:
                    await response.write(piece)
                await response.write_eof()
            return response
        if request.transport is not None:
            request.transport.abort()
        return response


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)
