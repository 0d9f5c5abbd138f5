"""Clients that hold a server up, and beside them clients that scrape it and look at the clock.

    async with slow_clients(port, 500, random.Random(7)):
        toll = await scrape(port, per_second=200, seconds=60)

A slow client that was sent away comes back a second later, so that there are always about as many.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

HONEST = 40
"""Scrapers; every other one keeps its connection, as Prometheus does."""
SCRAPE = (
    b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n"
    b"Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5\r\n"
)
WHOLE = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
TICK_SECONDS = 1.0


class _Slow(asyncio.Protocol):
    """One that connects and does nothing more."""

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.begin()

    def begin(self) -> None:
        """What it does first."""

    def tick(self) -> None:
        """What it does once a second."""

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class _Dribble(_Slow):
    """Its header comes a byte a second."""

    def begin(self) -> None:
        self.left = iter(WHOLE)

    def tick(self) -> None:
        byte = next(self.left, None)
        if byte is not None:
            self.transport.write(bytes([byte]))


class _Deaf(_Slow):
    """Asks again and again and reads nothing."""

    def begin(self) -> None:
        self.transport.pause_reading()

    def tick(self) -> None:
        self.transport.write(WHOLE)


class _Idle(_Slow):
    """Asks once, reads the answer and stays."""

    def begin(self) -> None:
        self.transport.write(WHOLE)


class _HalfOpen(_Slow):
    """Says in the middle of a header that it says no more."""

    def begin(self) -> None:
        self.transport.write(WHOLE[:30])

    def tick(self) -> None:
        self.transport.write_eof()


@asynccontextmanager
async def slow_clients(port: int, count: int, chance: random.Random) -> AsyncIterator[None]:
    """That many, of every kind, until the block ends."""
    kinds = itertools.cycle((_Slow, _Dribble, _Deaf, _Idle, _HalfOpen))
    tasks = [
        asyncio.create_task(_come_again(port, kind, chance.random()))
        for kind, _ in zip(kinds, range(count), strict=False)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _come_again(port: int, kind: type[_Slow], begin_after: float) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(begin_after)
    while True:
        try:
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.setblocking(False)
            await loop.sock_connect(raw, ("127.0.0.1", port))
            _, client = await loop.create_connection(kind, sock=raw)
        except ConnectionError:
            continue
        try:
            while not client.ended.done():
                client.tick()
                await asyncio.wait((client.ended,), timeout=TICK_SECONDS)
        finally:
            client.transport.abort()
        await asyncio.sleep(TICK_SECONDS)


@dataclass
class Toll:
    """What the scrapers saw.

    Attributes:
        seconds: From the instant a scrape was due to its last byte, of each.
        errors: Scrapes without a whole answer of status 200, by what came instead.
    """

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        """Of the seconds, by rank."""
        ranked = sorted(self.seconds)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


async def scrape(port: int, per_second: float, seconds: float) -> Toll:
    """Scrapes at even distances, whether earlier answers have come or not."""
    toll = Toll()
    began_at = time.perf_counter() + 0.1
    period = HONEST / per_second

    async def scraper(number: int) -> None:
        client = _Scraper(port, keeps=number % 2 == 0)
        due = began_at + period * number / HONEST
        while due < began_at + seconds:
            await asyncio.sleep(due - time.perf_counter())
            try:
                await client.scrape()
            except (ConnectionError, EOFError, AssertionError) as error:
                toll.errors.append(repr(error))
            else:
                toll.seconds.append(time.perf_counter() - due)
            due += period
        client.close()

    async with asyncio.TaskGroup() as group:
        for number in range(HONEST):
            group.create_task(scraper(number))
    return toll


class _Scraper:
    """One honest client."""

    def __init__(self, port: int, *, keeps: bool) -> None:
        self._port = port
        self._keeps = keeps
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def scrape(self) -> None:
        """One scrape.

        Raises:
            ConnectionError, EOFError: No whole answer came.
            AssertionError: Another status than 200.
        """
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        try:
            writer.write(SCRAPE + (b"\r\n" if self._keeps else b"Connection: close\r\n\r\n"))
            header = await reader.readuntil(b"\r\n\r\n")
            assert header.startswith(b"HTTP/1.1 200 "), header
            length = header.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        except BaseException:
            self.close()
            raise
        if not self._keeps:
            self.close()

    def close(self) -> None:
        """Leaves the server."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
