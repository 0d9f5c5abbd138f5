"""Connections, bounded in number, and each in time and memory."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast

from exporter.web_limits.refusals import Refusal, Refusals

TLS_SHUTDOWN_SECONDS = 1.0
"""In which a client may answer that it, too, has nothing more to say."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What is bounded."""

    connections: int = 512
    """At once: half of the files a service may open by default. Journal files need theirs."""
    request_seconds: float = 10.0
    """From a connection, or the first byte of a further request, to the end of its header."""
    request_bytes: int = 16_384
    """Of a header with its URL; Prometheus sends about 400."""
    read_seconds: float = 30.0
    """In which a client has to take an answer, or a piece of a long one."""
    unread_answers: int = 64
    """That wait in memory for their clients."""


class Connections:
    """All of one server, the first of each kind having been in that state the longest."""

    def __init__(self, limits: Limits, refusals: Refusals) -> None:
        """No connection yet; those that are cut are counted in `refusals`."""
        self.limits = limits
        self.refusals = refusals
        self._waiting: dict[Connection, None] = {}
        self._unread: dict[Connection, None] = {}
        self._connections = 0

    def entered(self, connection: Connection) -> None:
        """A client has connected; where that is one too many, who waits longest has to go."""
        self._connections += 1
        self.waits(connection)
        if self._connections > self.limits.connections:
            next(iter(self._waiting)).cut(Refusal.CONNECTIONS)

    def left(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections -= 1
        self.forget(connection)

    def forget(self, connection: Connection) -> None:
        """It ends: nothing is to be had from it any more."""
        self.asks(connection)
        self.has_read(connection)

    def waits(self, connection: Connection) -> None:
        """The client owes a request, from now on."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def asks(self, connection: Connection) -> None:
        """A request has come whole."""
        self._waiting.pop(connection, None)

    def does_not_read(self, connection: Connection) -> None:
        """The client does not take its answer as fast as it is sent."""
        self._unread[connection] = None
        if len(self._unread) > self.limits.unread_answers:
            next(iter(self._unread)).cut(Refusal.SLOW_READER)

    def has_read(self, connection: Connection) -> None:
        """Nothing waits for the client any more."""
        self._unread.pop(connection, None)


class Connection(asyncio.Protocol):
    """One client: passes on what aiohttp and the socket have for each other, and looks at a clock.

    aiohttp's own handler cannot be asked whether a request has come whole: who answers says so.
    """

    def __init__(
        self, others: Connections, handler: asyncio.Protocol, tls: ssl.SSLContext | None = None
    ) -> None:
        """Nothing is bounded before a transport comes; with `tls` a handshake has to follow."""
        self._others = others
        self._limits = others.limits
        self._handler = handler
        self._tls = tls
        self._securing: asyncio.Task[None] | None = None
        self._early = b""
        self._is_over = False
        self._transport: asyncio.Transport | None = None
        self._received = 0
        self._is_answered = False
        self._request_timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None

    # --- what the transport says ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)
        # Told of the first byte that the kernel does not take; with 0, TLS tells without one.
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._expect_request()
        if self._tls is None:
            self._handler.connection_made(transport)
        else:
            self._securing = asyncio.create_task(self._secure(self._tls), name="TLS handshake")
        self._others.entered(self)

    async def _secure(self, context: ssl.SSLContext) -> None:
        """The handshake: it counts as part of the first request."""
        raw = cast(asyncio.Transport, self._transport)
        try:
            secured = await asyncio.get_running_loop().start_tls(
                raw, self, context, server_side=True, ssl_shutdown_timeout=TLS_SHUTDOWN_SECONDS
            )
        except OSError as error:  # no TLS, no trust, or gone; also a cut
            self.connection_lost(error)
            return
        finally:
            self._securing = None
        if secured is None or self._is_over:  # gone in that very moment
            self.connection_lost(None)
            return
        secured.set_write_buffer_limits(high=1, low=0)
        self._transport = secured
        self._handler.connection_made(secured)
        early, self._early = self._early, b""
        if early:
            self._handler.data_received(early)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request, or of one that comes before the last one is answered."""
        self._received += len(data)
        if self._received > self._limits.request_bytes:
            text = (
                f"413 Content Too Large\na request has at most {self._limits.request_bytes} bytes\n"
            )
            self.cut(Refusal.TOO_LARGE, text)
            return
        if not self._is_answered and self._request_timer is None:
            self._expect_request()
        if self._securing is None:
            self._handler.data_received(data)
        else:  # right behind the handshake
            self._early += data

    def eof_received(self) -> bool | None:
        """The client sends no more."""
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        """The kernel takes no more."""
        loop = asyncio.get_running_loop()
        self._reading_timer = loop.call_later(
            self._limits.read_seconds, self.cut, Refusal.SLOW_READER
        )
        self._handler.pause_writing()
        self._others.does_not_read(self)

    def resume_writing(self) -> None:
        """The kernel has taken all."""
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None
        self._others.has_read(self)
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, whoever ended it; may be called twice."""
        if self._is_over:
            return
        self._is_over = True
        for timer in (self._request_timer, self._reading_timer):
            if timer is not None:
                timer.cancel()
        self._others.left(self)
        self._handler.connection_lost(exc)

    # --- what who answers says --------------------------------------------------------------

    def request_came(self) -> None:
        """A header is complete, its answer is being made."""
        self._is_answered = True
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
        self._others.asks(self)

    def answer_made(self) -> None:
        """The answer goes out; a further request may come when it likes."""
        self._is_answered = False
        self._received = 0
        if self._transport is not None and not self._transport.is_closing():
            self._others.waits(self)

    # --- ends ----------------------------------------------------------------------------------

    def cut(self, reason: Refusal, text: str = "") -> None:
        """Ends the connection; `text` goes first, if nothing else is going out.

        Args:
            reason: What it is counted as.
            text: Status line of the answer without the version, a newline, and its body's rest.
        """
        if self._transport is None:
            return
        if self._transport.is_closing() and self._reading_timer is None:
            return  # it ends already, and nothing waits to be read before
        self._others.refusals.count(reason)
        self._others.forget(self)
        is_free = not self._is_answered and self._reading_timer is None and self._securing is None
        if text and is_free:
            status = text.partition("\n")[0]
            self._transport.write(
                f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n{text}".encode()
            )
            if self._reading_timer is None:  # taken by the kernel
                self._transport.close()
                return
        self._transport.abort()

    def _expect_request(self) -> None:
        loop = asyncio.get_running_loop()
        self._request_timer = loop.call_later(self._limits.request_seconds, self._request_overdue)

    def _request_overdue(self) -> None:
        self._request_timer = None
        text = f"408 Request Timeout\na request has to come within {self._limits.request_seconds:g} s\n"
        # An idle browser's spare connection has asked nothing, and gets no answer.
        self.cut(Refusal.SLOW_REQUEST, text if self._received else "")
