"""Requests: no bodies, and long answers a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from aiohttp import web

from exporter.web_limits.connections import Connection
from exporter.web_limits.refusals import Refusal, Refusals

Answerer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

MOST_LONG_ANSWERS = 2
"""Answers of up to 2 MB that are made and sent at once."""
PIECE_BYTES = 1 << 16
TURN_SECONDS = 2.0
"""How long a request for a further one waits."""


def bounded(answer: Answerer, refusals: Refusals) -> Answerer:
    """`answer` for requests as they should be: no bodies, no expectations, no upgrades."""

    async def bound(request: web.BaseRequest) -> web.StreamResponse:
        connection = request.transport and request.transport.get_protocol()
        if not isinstance(connection, Connection):
            return web.Response()  # gone before it was looked at: nobody gets this
        connection.request_came()
        try:
            if request.body_exists:
                refusals.count(Refusal.TOO_LARGE)
                return _refused("413 Content Too Large\na request has no body here\n")
            if "Expect" in request.headers:
                # aiohttp would tell of it, and stumble over one that is no text.
                return _refused("417 Expectation Failed\n")
            response = await answer(request)
            if "Upgrade" in request.headers:
                # aiohttp may take what follows for another protocol's, and wait for more of it.
                response.force_close()
        finally:
            connection.answer_made()
        if response.status == 503 and "Retry-After" in response.headers:
            refusals.count(Refusal.BUSY)
        return response

    return bound


def _refused(text: str) -> web.Response:
    response = web.Response(status=int(text[:3]), text=text)
    response.force_close()
    return response


class Turns:
    """Long answers, a few at a time: each is in memory until its client has taken it."""

    def __init__(self, wait_seconds: float = TURN_SECONDS) -> None:
        """A request waits at most so long for its turn."""
        self._free = asyncio.Semaphore(MOST_LONG_ANSWERS)
        self._wait_seconds = wait_seconds

    async def answer(
        self, request: web.Request, content_type: str, make: Callable[[], bytes]
    ) -> web.StreamResponse:
        """Sends what `make` gives, in its turn; 503 if that does not come soon."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._free.acquire()
        except TimeoutError:
            return web.Response(
                status=503,
                text="others are getting long answers; try again in a moment\n",
                headers={"Retry-After": "5"},
            )
        try:
            body = make()
            response = web.StreamResponse(headers={"Content-Type": content_type})
            response.enable_compression()
            # A client that went away, or was cut off: no news.
            with contextlib.suppress(ConnectionError):
                await response.prepare(request)
                if request.method != "HEAD":
                    # In pieces: asyncio's TLS takes any one of them whole, read or not.
                    for at in range(0, len(body), PIECE_BYTES):
                        await response.write(body[at : at + PIECE_BYTES])
                    await response.write_eof()
            return response
        finally:
            self._free.release()
