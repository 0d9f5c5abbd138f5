"""Requests: no bodies, and long answers a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from exporter.web_limits.connections import Connection
from exporter.web_limits.refusals import Refusal, Refusals

MOST_LONG_ANSWERS = 2
"""Answers of up to 2 MB that are made and sent at once."""
TURN_SECONDS = 2.0
"""How long a request for a further one waits."""


def bounded(refusals: Refusals) -> Middleware:
    """The outermost middleware: tells the connection what it is doing, and refuses bodies."""

    @web.middleware
    async def bound(request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.transport and request.transport.get_protocol()
        if not isinstance(connection, Connection):
            return web.Response()  # gone before it was looked at: nobody gets this
        connection.request_came()
        try:
            if request.body_exists:
                refusals.count(Refusal.TOO_LARGE)
                refusal = web.Response(
                    status=413, text="413 Content Too Large\na request has no body here\n"
                )
                refusal.force_close()
                return refusal
            response = await handler(request)
        finally:
            connection.answer_made()
        if response.status == 503 and "Retry-After" in response.headers:
            refusals.count(Refusal.BUSY)
        return response

    return bound


class Turns:
    """Long answers, a few at a time: each is in memory until its client has taken it."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MOST_LONG_ANSWERS)

    async def answer(
        self, request: web.Request, make: Callable[[], web.Response]
    ) -> web.StreamResponse:
        """Sends what `make` gives, in its turn; 503 if that does not come soon."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            return web.Response(
                status=503,
                text="others are getting long answers; try again in a moment\n",
                headers={"Retry-After": "5"},
            )
        try:
            response = make()
            # A client that went away, or was cut off: no news.
            with contextlib.suppress(ConnectionError):
                await response.prepare(request)
                await response.write_eof()
            return response
        finally:
            self._free.release()
