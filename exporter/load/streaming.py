"""One streaming request: sent, read to its end, and timed.

Never follows a redirect, never uses a proxy or a cookie, verifies certificates, bounds every line
and the number of lines, and keeps no connection: a kept one may be closed by the server just as the
next request leaves. So the time to the first token holds a connection's set-up too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp

from exporter import __version__
from exporter.load.answer import Answer
from exporter.load.event_stream import EventStream
from exporter.load.failures import (
    FailureKind,
    RequestFailedError,
    kind_of_error,
    kind_of_status,
    retry_after_seconds,
)
from exporter.load.target import Target

CONNECT_SECONDS = 10.0

_HEADERS = {
    "Accept": "text/event-stream",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": f"sglang-pipeline-exporter/{__version__}",
}
# `/generate` repeats all text and token ids in each event.
_LINE_BYTES = 64 << 10
_LINE_BYTES_A_TOKEN = 128
# An event is two lines; the rest is for comments that keep a proxy's connection alive.
_LINES = 4096
_LINES_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One request that was answered to its end; instants are of the clock that was handed in."""

    started_at: float
    first_token_at: float
    ended_at: float
    output_tokens: int


Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Tokens of one request that came together.

    `waited_seconds` is the time since those before or, for the `first`, since the request was sent.
    """

    at: float
    count: int
    waited_seconds: float
    first: bool


TokensSeen = Callable[[NewTokens], None]


def open_session(request_seconds: float) -> aiohttp.ClientSession:
    """Connections for a load; each request may take so long, connecting included."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(
            total=request_seconds, connect=min(CONNECT_SECONDS, request_seconds)
        ),
    )


class StreamingRequest:
    """Sends requests to one target and reads what they give."""

    def __init__(
        self, session: aiohttp.ClientSession, target: Target, output_tokens: int, clock: Clock
    ) -> None:
        """Expects this number of tokens from each request; more is no answer of ours."""
        self._session = session
        self._target = target
        self._output_tokens = output_tokens
        self._clock = clock
        self._headers = dict(_HEADERS)
        if target.token is not None:
            self._headers["Authorization"] = f"Bearer {target.token}"

    async def send(self, body: bytes, seen: TokensSeen) -> RequestTiming:
        """Sends one request and reports its tokens to `seen` as they come.

        Raises:
            RequestFailedError: It was not answered to its end, or without a token.
        """
        started_at = self._clock()
        try:
            async with self._session.post(
                self._target.address, data=body, headers=self._headers, allow_redirects=False
            ) as response:
                _check_head(response)
                return await self._read(response, started_at, seen)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            # Not chained: aiohttp's errors may quote a malformed answer.
            raise RequestFailedError(kind_of_error(error)) from None

    async def _read(
        self, response: aiohttp.ClientResponse, started_at: float, seen: TokensSeen
    ) -> RequestTiming:
        lines = EventStream(
            most_line_bytes=_LINE_BYTES + _LINE_BYTES_A_TOKEN * self._output_tokens,
            most_lines=_LINES + _LINES_A_TOKEN * self._output_tokens,
        )
        answer = Answer(self._target.api, self._output_tokens)
        first_token_at: float | None = None
        newest_at = started_at
        async for chunk in response.content.iter_any():
            at, before = self._clock(), answer.tokens
            for payload in lines.feed(chunk):
                answer.feed(payload)
            if answer.tokens > before:
                first = first_token_at is None
                seen(NewTokens(at, answer.tokens - before, at - newest_at, first))
                first_token_at = at if first_token_at is None else first_token_at
                newest_at = at
        if not answer.done:
            raise RequestFailedError(FailureKind.BROKEN_OFF)
        if first_token_at is None:
            raise RequestFailedError(FailureKind.UNUSABLE)
        return RequestTiming(started_at, first_token_at, self._clock(), answer.tokens)


def _check_head(response: aiohttp.ClientResponse) -> None:
    if response.status != HTTPStatus.OK:
        header = response.headers.get("Retry-After")
        raise RequestFailedError(
            kind_of_status(response.status), retry_after_seconds(header, time.time())
        )
    encoding = response.headers.get("Content-Encoding", "identity").lower()
    if response.content_type != "text/event-stream" or encoding != "identity":
        raise RequestFailedError(FailureKind.UNUSABLE)
