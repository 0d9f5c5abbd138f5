"""Facts from SGLang's HTTP API: asked once a launch, bounded, nothing secret kept."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from exporter.records import EventKind, Record, ServerEvent, ServerFacts
from exporter.sources.server.answer import MOST_BYTES
from exporter.sources.server.probe import MOST_UNUSABLE_ANSWERS, ServerProbe
from tests.sglang_server import API_KEY, RawServer, SglangServer, answer

T = 1_796_000_000.0
FACTS = {
    "model_path": "/models/kimi",
    "served_model_name": "kimi",
    "host": "0.0.0.0",  # noqa: S104  # only reported
    "port": 30000,
    "pp_size": 8,
    "tp_size": 1,
    "dp_size": 1,
    "nnodes": 1,
    "node_rank": 0,
    "base_gpu_id": 0,
    "gpu_id_step": 1,
    "pp_async_batch_depth": 2,
    "pp_max_micro_batch_size": 6,
    "max_running_requests": 48,
    "decode_log_interval": 41,
    "enable_metrics": False,
    "version": "0.5.23",
}


class ManualSleep:
    """Pauses end when the test says so; each is written down."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._paused = asyncio.Condition()
        self._permits = 0

    async def __call__(self, seconds: float) -> None:
        async with self._paused:
            self.seconds.append(seconds)
            self._paused.notify_all()
            await self._paused.wait_for(lambda: self._permits > 0)
            self._permits -= 1

    async def pauses(self, count: int) -> None:
        """Waits until so many pauses began."""
        async with asyncio.timeout(60), self._paused:
            await self._paused.wait_for(lambda: len(self.seconds) >= count)

    async def end_one(self) -> None:
        async with self._paused:
            self._permits += 1
            self._paused.notify_all()


class Running:
    """A probe that runs, and what it emitted."""

    def __init__(self, url: str, **options: Any) -> None:
        self.sleep = ManualSleep()
        self.records: list[Record] = []
        self.probe = ServerProbe("kimi", url, clock=lambda: T, sleep=self.sleep, **options)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Running:
        await self.probe.open(None)
        self._task = asyncio.create_task(self.probe.run(self._emit))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.probe.close()

    def _emit(self, record: Record) -> None:
        self.records.append(record)
        self._changed.set()

    async def facts(self) -> dict[str, Any]:
        """The next facts emitted."""
        async with asyncio.timeout(60):
            await self._changed.wait()
        self._changed.clear()
        record = self.records[-1]
        assert isinstance(record, ServerFacts)
        return dict(record.facts)

    async def settled(self) -> str:
        """Waits until the probe asks no more by itself; what it says then."""
        async with asyncio.timeout(60):
            await self.probe.settled.wait()
        return self.probe.health.last_error or ""


@pytest.fixture
async def server() -> AsyncIterator[SglangServer]:
    server = SglangServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(autouse=True)
def _nothing_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG)
    yield
    assert API_KEY not in caplog.text


async def test_a_server_tells_its_facts_as_it_settled_on_them(server: SglangServer) -> None:
    async with Running(server.url) as running:
        assert await running.facts() == FACTS
        assert running.records == [ServerFacts("kimi", T, FACTS, "server_info")]
        assert running.probe.health.up
        assert running.probe.health.name == "server:kimi"
        assert running.probe.position() is None
    assert server.asked == ["/server_info"]


async def test_an_answered_server_is_left_alone_until_its_next_launch(
    server: SglangServer,
) -> None:
    async with Running(server.url) as running:
        await running.facts()
        await running.settled()
        assert server.asked == ["/server_info"]
        server.body = answer(pp_size=4)
        running.probe.ask_again()
        assert (await running.facts())["pp_size"] == 4
        await running.settled()
        assert running.sleep.seconds == []
    assert server.asked == ["/server_info"] * 2


async def test_a_server_that_fired_up_is_asked_at_once_and_once_a_launch(
    server: SglangServer,
) -> None:
    """A real one was ready 37 seconds before the next question was due."""
    await server.stop()
    async with Running(server.url) as running:
        await running.sleep.pauses(1)
        running.probe.hear(ServerEvent("kimi", T, EventKind.FIRED_UP))
        await running.sleep.pauses(2)
        running.probe.hear(ServerEvent("kimi", T, EventKind.FIRED_UP))
        await running.sleep.end_one()
        await running.sleep.pauses(3)
        await server.start()
        running.probe.hear(ServerFacts("kimi", T, {}, "server_args", new_launch=True))
        await running.facts()
        assert running.sleep.seconds == [5.0, 10.0, 20.0]
    assert server.asked == ["/server_info"]


async def test_an_answered_server_that_fires_up_is_left_alone(server: SglangServer) -> None:
    async with Running(server.url) as running:
        await running.facts()
        await running.settled()
        running.probe.hear(ServerEvent("kimi", T, EventKind.FIRED_UP))
        assert running.probe.settled.is_set()
    assert server.asked == ["/server_info"]


@pytest.mark.parametrize("version", [(0, 4, 10), (0, 5, 5)], ids=["0.4.10", "0.5.5"])
async def test_an_older_server_is_asked_by_the_old_name(
    server: SglangServer, version: tuple[int, ...]
) -> None:
    server.version = version
    async with Running(server.url) as running:
        assert (await running.facts())["pp_size"] == 8
    assert server.asked == ["/server_info", "/get_server_info"]


async def test_a_newer_server_is_never_made_to_print_its_warning(server: SglangServer) -> None:
    async with Running(server.url) as running:
        for _ in range(3):
            await running.facts()
            running.probe.ask_again()
    assert server.warnings == []


async def test_the_old_name_is_asked_once_a_launch(server: SglangServer) -> None:
    server.version, server.body = (0, 5, 5), b"no JSON"
    async with Running(server.url) as running:
        assert "is not JSON" in await running.settled()
        assert server.asked == ["/server_info", "/get_server_info"]
        running.probe.ask_again()
        await running.settled()
    assert server.asked == ["/server_info", "/get_server_info"] * 2


async def test_a_server_that_knows_neither_name_is_left_alone() -> None:
    reply = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    async with RawServer(reply) as url, Running(url) as running:
        assert await running.settled() == (
            f"cannot ask {url}/get_server_info: the server answered 404; `url` must be the base"
            " address of the first node's SGLang server"
        )
        assert not running.probe.health.up
        assert running.sleep.seconds == []


async def test_a_server_that_is_not_up_yet_is_asked_ever_more_slowly(
    server: SglangServer, caplog: pytest.LogCaptureFixture
) -> None:
    await server.stop()
    async with Running(server.url) as running:
        for count in range(1, 7):
            await running.sleep.pauses(count)
            assert running.probe.health.last_error == (
                f"cannot ask {server.url}/server_info: connection refused; "
                "is the server up, is `url` right?"
            )
            assert not running.probe.health.up
            if count < 6:
                await running.sleep.end_one()
        assert running.sleep.seconds == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
        await server.start()
        await running.sleep.end_one()
        assert await running.facts() == FACTS
        assert running.probe.health.last_error is None
    assert caplog.text.count("connection refused") == 1


async def test_a_launch_ends_a_pause(server: SglangServer) -> None:
    await server.stop()
    async with Running(server.url) as running:
        await running.sleep.pauses(1)
        await server.start()
        running.probe.ask_again()
        assert await running.facts() == FACTS


async def test_an_answer_that_a_launch_overtook_is_void(server: SglangServer) -> None:
    server.hang = True
    async with Running(server.url, answer_seconds=0.5) as running:
        await server.arrived.wait()
        running.probe.ask_again()
        server.hang, server.body = False, answer(pp_size=2)
        assert (await running.facts())["pp_size"] == 2
        await running.settled()
        assert len(running.records) == 1
    assert server.most_at_once == 1


# --- tokens --------------------------------------------------------------------------------------


async def test_a_token_goes_along(server: SglangServer, tmp_path: Path) -> None:
    server.key = API_KEY
    token_file = tmp_path / "token"
    token_file.write_text(f"{API_KEY}\n")
    async with Running(server.url, token_file=token_file) as running:
        facts = await running.facts()
    assert facts == FACTS
    assert server.tokens == [f"Bearer {API_KEY}"]


async def test_a_missing_token_is_named_and_not_asked_for_again(server: SglangServer) -> None:
    server.key = API_KEY
    async with Running(server.url) as running:
        for count in (1, 2, 3):
            await running.sleep.pauses(count)
            await running.sleep.end_one()
        assert running.probe.health.last_error == (
            f"cannot ask {server.url}/server_info: the server answered 401; "
            "give its API key in `token_file`"
        )
    assert server.asked == ["/server_info"]


async def test_a_wrong_token_is_sent_once_and_a_corrected_one_at_once(
    server: SglangServer, tmp_path: Path
) -> None:
    server.key = API_KEY
    token_file = tmp_path / "token"
    token_file.write_text("wrong")
    async with Running(server.url, token_file=token_file) as running:
        await running.sleep.pauses(1)
        assert "answered 401; is `token_file` right?" in (running.probe.health.last_error or "")
        await running.sleep.end_one()
        await running.sleep.pauses(2)
        assert server.tokens == ["Bearer wrong"]
        token_file.write_text(API_KEY)
        await running.sleep.end_one()
        assert await running.facts() == FACTS


@pytest.mark.parametrize(
    "content",
    [b"", b"  \n", f"{API_KEY}\r\nHost: evil".encode(), "schlüssel".encode(), b"x" * 5000],
    ids=["empty", "blank", "two_lines", "not_ascii", "huge"],
)
async def test_a_file_that_holds_no_token_keeps_the_server_unasked(
    server: SglangServer, tmp_path: Path, content: bytes
) -> None:
    token_file = tmp_path / "token"
    token_file.write_bytes(content)
    async with Running(server.url, token_file=token_file) as running:
        await running.sleep.pauses(1)
        assert running.probe.health.last_error == (
            f"cannot use the token_file {token_file}: it must hold the API key alone"
        )
    assert server.asked == []


async def test_a_token_file_that_is_not_there_is_named(
    server: SglangServer, tmp_path: Path
) -> None:
    async with Running(server.url, token_file=tmp_path / "none") as running:
        await running.sleep.pauses(1)
        assert "No such file or directory; make it a file" in (
            running.probe.health.last_error or ""
        )
        (tmp_path / "none").write_text("any")
        await running.sleep.end_one()
        assert await running.facts() == FACTS


# --- hostile answers -----------------------------------------------------------------------------

UNUSABLE = {
    "no_json": (b"<html>", "is not JSON"),
    "not_utf8": (b'{"pp_size": "\xff"}', "is not JSON"),
    "a_list": (b"[1]", "no JSON object"),
    "another_service": (b'{"status": "ok"}', "no SGLang server's arguments"),
    "sizes_beyond_reason": (b'{"pp_size": 65, "tp_size": 0}', "no SGLang server's arguments"),
    "endless_number": (b'{"pp_size": 1' + b"0" * 100_000 + b"}", "is not JSON"),
    "deeply_nested": (b"[" * 1_000_000, "nested too deeply"),
    "deeply_nested_objects": (b'{"a":' * 500_000, "nested too deeply"),
    "huge": (b'{"pp_size": 8, "x": "' + b"x" * MOST_BYTES + b'"}', "larger than"),
}


@pytest.mark.parametrize(("body", "reason"), UNUSABLE.values(), ids=UNUSABLE)
async def test_an_unusable_answer_is_named_and_asked_for_a_few_times_only(
    server: SglangServer, body: bytes, reason: str
) -> None:
    server.body = body
    async with Running(server.url) as running:
        for count in range(1, MOST_UNUSABLE_ANSWERS):
            await running.sleep.pauses(count)
            assert reason in (running.probe.health.last_error or "")
            await running.sleep.end_one()
        assert reason in await running.settled()
        assert running.records == []
    assert server.asked == ["/server_info"] * MOST_UNUSABLE_ANSWERS


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (307, {"Location": "/get_server_info"}, "a redirect; give the address it leads to"),
        (302, {"Location": "http://127.0.0.1:9/"}, "a redirect"),
        (500, {}, "answered 500; its log may say why"),
        (502, {}, "answered 502; is the server behind it up?"),
        (200, {"Content-Encoding": "gzip"}, "in an encoding not asked for"),
    ],
    ids=["redirect", "redirect_elsewhere", "broken", "proxy", "compressed"],
)
async def test_a_status_is_named_with_its_remedy(
    server: SglangServer, status: int, headers: dict[str, str], said: str
) -> None:
    server.status, server.headers = status, headers
    if "Content-Encoding" in headers:
        server.body = gzip.compress(json.dumps(answer()).encode())
    async with Running(server.url) as running:
        await running.sleep.pauses(1)
        assert said in (running.probe.health.last_error or "")
        assert running.records == []
    assert server.asked == ["/server_info"]


async def test_a_proxy_without_its_server_is_asked_as_long_as_it_takes(
    server: SglangServer,
) -> None:
    server.status = 503
    async with Running(server.url) as running:
        for count in range(1, 2 * MOST_UNUSABLE_ANSWERS):
            await running.sleep.pauses(count)
            await running.sleep.end_one()
        server.status = 200
        assert await running.facts() == FACTS


async def test_a_reset_connection_is_tried_again(server: SglangServer) -> None:
    server.reset = True
    async with Running(server.url) as running:
        await running.sleep.pauses(1)
        assert "the connection broke" in (running.probe.health.last_error or "")
        server.reset = False
        await running.sleep.end_one()
        assert await running.facts() == FACTS


async def test_a_slow_server_is_given_up_in_time(server: SglangServer) -> None:
    server.hang = True
    async with Running(server.url, answer_seconds=0.05) as running:
        await running.sleep.pauses(1)
        assert "no whole answer in time" in (running.probe.health.last_error or "")


@pytest.mark.parametrize(
    "reply",
    [
        f"SSH-2.0-{API_KEY}\r\n".encode(),
        f"HTTP/1.1 {API_KEY}\r\n\r\n".encode(),
        f"HTTP/1.1 200 OK\r\n{API_KEY}\r\n\r\n".encode(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"",
    ],
    ids=["no_http", "no_status", "no_header", "cut_short", "no_chunk", "huge_header", "nothing"],
)
async def test_a_broken_answer_costs_only_itself_and_is_not_repeated(reply: bytes) -> None:
    async with RawServer(reply) as url, Running(url) as running:
        await running.sleep.pauses(1)
        said = running.probe.health.last_error or ""
        assert said.startswith(f"cannot ask {url}/server_info: ")
        assert API_KEY not in said
        assert running.records == []


async def test_a_port_that_never_accepts_is_given_up_in_time() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            async with Running(f"http://127.0.0.1:{port}", answer_seconds=0.05) as running:
                await running.sleep.pauses(1)
                assert "in time" in (running.probe.health.last_error or "")


@pytest.fixture
def certificate(tmp_path: Path) -> ssl.SSLContext:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    command = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 -keyout key -out cert"
    subprocess.run(
        ["openssl", *command.split()], cwd=tmp_path, check=True, stderr=subprocess.DEVNULL
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    return tls


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    server: SglangServer, certificate: ssl.SSLContext
) -> None:
    await server.stop()
    await server.start(certificate)
    async with Running(server.url.replace("http:", "https:")) as running:
        await running.sleep.pauses(1)
        assert "its certificate cannot be verified" in (running.probe.health.last_error or "")
    assert server.asked == []
