"""What one client may take from the others."""

import asyncio
import random
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from exporter.recent.records import RecentRecords
from exporter.web import WebServer
from exporter.web_limits.connections import Limits
from exporter.web_limits.refusals import Refusals
from exporter.web_limits.requests import MOST_LONG_ANSWERS, Turns
from exporter.web_limits.runner import LimitedRunner
from tests.http_fuzz import fuzz, statuses_of
from tests.running import PATIENCE_SECONDS
from tests.unit.test_web import CONFIG, Served

SMALL = b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n"
BIG = b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n"
LONG = b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n"
MORE_THAN_A_KERNEL_HOLDS = 32 << 20


class Client:
    """A raw connection, whose kernel holds little."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> bytes:
        """Status line, header and body of one answer that tells its length."""
        header = await self.reader.readuntil(b"\r\n\r\n")
        length = int(header.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return header + await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """Everything until the server ends the connection."""
        rest = b""
        try:
            while piece := await self.reader.read(1 << 20):
                rest += piece
        except ConnectionError:
            pass
        return rest


class Server:
    """Small, big and long answers within limits."""

    def __init__(self, limits: Limits, turns: Turns, tls: ssl.SSLContext | None) -> None:
        self.refusals = Refusals()
        self.turns = turns
        self.port = 0
        app = web.Application()
        app.router.add_get("/small", self._small)
        app.router.add_get("/big", self._big)
        app.router.add_get("/long", self._long)
        self._runner = LimitedRunner(app, limits, self.refusals, shutdown_timeout=1)
        self._tls = tls
        self._clients: list[Client] = []

    async def start(self) -> None:
        await self._runner.setup()
        self._listener = await asyncio.get_running_loop().create_server(
            self._runner.protocols(self._tls), "127.0.0.1", 0
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        for client in self._clients:
            client.writer.transport.abort()
        self._listener.close()
        await self._runner.cleanup()

    async def client(self) -> Client:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self.port))
        self._clients.append(Client(*await asyncio.open_connection(sock=raw, limit=4096)))
        return self._clients[-1]

    def refused(self) -> dict[str, int]:
        return {reason: count for reason, count in self.refusals.counts.items() if count}

    async def _small(self, _request: web.Request) -> web.Response:
        return web.Response(text="small\n")

    async def _big(self, _request: web.Request) -> web.Response:
        return web.Response(body=bytes(MORE_THAN_A_KERNEL_HOLDS))

    async def _long(self, request: web.Request) -> web.StreamResponse:
        return await self.turns.answer(
            request, "text/plain", lambda: bytes(MORE_THAN_A_KERNEL_HOLDS)
        )


@asynccontextmanager
async def serving(
    limits: Limits, turns: Turns | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    server = Server(limits, turns or Turns(), tls)
    await server.start()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield server
    finally:
        await server.close()


async def test_a_header_that_does_not_end_is_told_so() -> None:
    async with serving(Limits(request_seconds=0.2)) as server:
        client = await server.client()
        client.send(b"GET /small HTTP/1.1\r\nHost:")
        answer = await client.rest()
        assert statuses_of(answer) == [408]
        assert answer.endswith(b"a request has to come within 0.2 s\n")
        assert server.refused() == {"slow_request": 1}


async def test_who_asks_nothing_is_sent_away_without_a_word() -> None:
    async with serving(Limits(request_seconds=0.2)) as server:
        client = await server.client()
        assert await client.rest() == b""
        assert server.refused() == {"slow_request": 1}


async def test_a_further_request_may_come_late_but_then_has_to_come_whole() -> None:
    async with serving(Limits(request_seconds=0.2)) as server:
        client = await server.client()
        client.send(SMALL)
        assert statuses_of(await client.answer()) == [200]
        other = await server.client()
        assert await other.rest() == b"", "as long as a first request may take"
        client.send(SMALL)
        assert statuses_of(await client.answer()) == [200]
        client.send(SMALL[:-2])
        assert statuses_of(await client.rest()) == [408]
        assert server.refused() == {"slow_request": 2}


async def test_of_too_many_clients_the_one_that_waits_longest_has_to_go() -> None:
    async with serving(Limits(connections=3)) as server:
        clients = [await server.client() for _ in range(3)]
        for client in clients[0], clients[2], clients[1]:
            client.send(SMALL)
            await client.answer()
        newest = await server.client()
        newest.send(SMALL)
        assert statuses_of(await newest.answer()) == [200]
        assert await clients[0].rest() == b""
        assert server.refused() == {"connections": 1}
        await server.client()
        assert await clients[2].rest() == b""
        assert server.refused() == {"connections": 2}


async def test_who_does_not_read_is_cut_off() -> None:
    async with serving(Limits(read_seconds=0.2)) as server:
        client = await server.client()
        client.send(BIG)
        await until(lambda: server.refused() == {"slow_reader": 1})
        assert len(await client.rest()) < MORE_THAN_A_KERNEL_HOLDS


async def test_only_so_many_answers_wait_for_their_clients() -> None:
    async with serving(Limits(unread_answers=2)) as server:
        clients = [await server.client() for _ in range(3)]
        for client in clients:
            client.send(BIG)
            await client.reader.readuntil(b"\r\n\r\n")
        await until(lambda: server.refused() == {"slow_reader": 1})
        assert len(await clients[0].rest()) < MORE_THAN_A_KERNEL_HOLDS
        assert len(await clients[1].reader.readexactly(MORE_THAN_A_KERNEL_HOLDS)) > 0


async def test_long_answers_are_given_a_few_at_a_time() -> None:
    async with serving(Limits(), Turns(wait_seconds=0.1)) as server:
        readers = [await server.client() for _ in range(MOST_LONG_ANSWERS)]
        for reader in readers:
            reader.send(LONG)
            await reader.reader.readuntil(b"\r\n\r\n")
        late = await server.client()
        late.send(LONG)
        refusal = await late.answer()
        assert statuses_of(refusal) == [503]
        assert b"Retry-After: " in refusal
        assert server.refused() == {"busy": 1}
        readers[0].writer.transport.abort()
        late.send(LONG)
        header = await late.reader.readuntil(b"\r\n\r\n")
        assert statuses_of(header) == [200]


@pytest.mark.parametrize(
    "request_",
    [
        b"POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
        b"GET /small HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /small HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /small?" + b"x" * 20_000,
        b"GET /small HTTP/1.1\r\n" + b"X: y\r\n" * 4_000,
    ],
    ids=["body", "chunks", "endless body", "long address", "many headers"],
)
async def test_too_large_a_request_is_told_so(request_: bytes) -> None:
    async with serving(Limits()) as server:
        client = await server.client()
        client.send(request_)
        answer = await client.rest()
        assert statuses_of(answer) == [413]
        assert b"\r\n\r\n413 Content Too Large\na request has " in answer
        assert server.refused() == {"too_large": 1}


@pytest.mark.parametrize("expected", [b"100-continue", b"\xff\xfe"], ids=["usual", "no text"])
async def test_nothing_is_to_be_expected(expected: bytes) -> None:
    async with serving(Limits()) as server:
        client = await server.client()
        client.send(b"GET /small HTTP/1.1\r\nHost: x\r\nExpect: " + expected + b"\r\n\r\n")
        assert statuses_of(await client.rest()) == [417]


async def test_an_upgrade_is_answered_as_if_it_were_none_and_ends() -> None:
    async with serving(Limits()) as server:
        client = await server.client()
        upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        client.send(b"GET /small HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\x81\x05hello")
        assert statuses_of(await client.rest()) == [200]


# --- with TLS ------------------------------------------------------------------------------------


@pytest.fixture(name="tls", scope="module")
def fixture_tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    folder = tmp_path_factory.mktemp("tls")
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=x", "-keyout", f"{folder}/key", "-out", f"{folder}/cert"]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    return context


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def test_requests_come_through_tls_and_slow_readers_are_cut_there_too(
    tls: ssl.SSLContext,
) -> None:
    async with serving(Limits(read_seconds=0.2), tls=tls) as server:
        raw = await server.client()
        await raw.writer.start_tls(trusting())
        raw.send(SMALL)
        assert statuses_of(await raw.answer()) == [200]
        raw.send(b"POST" + SMALL[3:-2] + b"Content-Length: 3\r\n\r\nyes")
        assert statuses_of(await raw.rest()) == [413]
        deaf = await server.client()
        await deaf.writer.start_tls(trusting())
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]  # typeshed: it writes only
        deaf.send(LONG)
        await until(lambda: "slow_reader" in server.refused())
        assert server.refused() == {"too_large": 1, "slow_reader": 1}


@pytest.mark.parametrize("hello", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["none", "cut"])
async def test_a_handshake_counts_as_part_of_the_request(tls: ssl.SSLContext, hello: bytes) -> None:
    async with serving(Limits(request_seconds=0.2, connections=2), tls=tls) as server:
        clients = [await server.client() for _ in range(3)]
        for client in clients:
            client.send(hello)
        assert [await client.rest() for client in clients] == [b""] * 3
        assert server.refused() == {"connections": 1, "slow_request": 2}


@pytest.mark.parametrize("hello", [SMALL, bytes(99)], ids=["no TLS", "nulls"])
async def test_what_is_no_handshake_ends_and_leaves_nothing(
    tls: ssl.SSLContext, hello: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Limits(connections=1), tls=tls) as server:
        before = asyncio.all_tasks()
        for _ in range(3):
            client = await server.client()
            client.send(hello)
            await client.rest()
        await until(lambda: asyncio.all_tasks() == before)
        assert server.refused() == {}
    assert caplog.records == []


# --- the exporter's own server -------------------------------------------------------------------


Started = Callable[[Limits], Awaitable[WebServer]]


@pytest.fixture(name="started")
async def fixture_started() -> AsyncIterator[Started]:
    servers: list[WebServer] = []

    async def start(limits: Limits) -> WebServer:
        recent = RecentRecords(lambda: 1.0)
        servers.append(WebServer(Served(), lambda back: recent.recording(back, ()), limits))
        await servers[-1].start(CONFIG)
        return servers[-1]

    yield start
    for server in servers:
        await server.close()


async def test_heads_are_answered_without_a_body_on_a_connection_that_goes_on(
    started: Started,
) -> None:
    server = await started(Limits())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    writer.write(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    answers = (await reader.read()).split(b"\r\n\r\n")
    assert [answer[:15] for answer in answers] == [b"HTTP/1.1 200 OK"] * 2 + [b"healthy\n"]
    writer.close()


@pytest.mark.parametrize("seed", range(2))
async def test_no_request_makes_an_error_of_the_server_or_leaves_a_task(
    started: Started, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = await started(Limits())
    before = asyncio.all_tasks()
    statuses = await fuzz(server.port, 1_000, random.Random(seed))
    assert {200, 400, 404, 405, 413, 417} <= statuses.keys()
    await until(lambda: asyncio.all_tasks() == before)
    assert caplog.records == []


async def until(condition: Callable[[], bool]) -> None:
    """Gives the loop's other tasks their turn until it holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110  # nobody tells when it does
            await asyncio.sleep(0.01)
