"""GET /api/v1/live: the state once a second, as server-sent events."""

from __future__ import annotations

import contextlib
import re

from aiohttp import web

from exporter.page.feed import LiveFeed, TooManyViewersError

RETRY_SECONDS = 2
"""How long a browser waits before it comes back."""


class LiveStream:
    """Answers viewers, each with the events of one feed."""

    def __init__(self, feed: LiveFeed) -> None:
        self._feed = feed

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Events until the viewer goes, does not keep up, or the exporter ends."""
        seen = request.headers.get("Last-Event-ID", "")

        def let_go() -> None:
            if request.transport is not None:
                request.transport.abort()

        try:
            with self._feed.viewing(
                int(seen) if re.fullmatch("[0-9]{1,12}", seen) else None, let_go
            ) as viewer:
                response = web.StreamResponse(
                    headers={
                        "Content-Type": "text/event-stream",
                        "Cache-Control": "no-store",
                        "X-Accel-Buffering": "no",
                        "X-Content-Type-Options": "nosniff",
                    }
                )
                # A viewer who left, or was let go: no news.
                with contextlib.suppress(ConnectionError):
                    await response.prepare(request)
                    if request.method == "HEAD":
                        return response
                    await response.write(f"retry: {1000 * RETRY_SECONDS}\n\n".encode())
                    while (event := await viewer.events.get()) is not None:
                        await response.write(event)
                return response
        except TooManyViewersError:
            return web.Response(
                status=503,
                text="too many pages are open; close some\n",
                headers={"Retry-After": "10"},
            )
