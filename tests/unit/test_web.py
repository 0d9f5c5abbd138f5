"""The HTTP server over what it is given to serve."""

import asyncio
import base64
import gzip
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from exporter.collector import ExporterState
from exporter.config import Config
from exporter.pipeline.clock import Second
from exporter.recent.records import RecentRecords
from exporter.recording_download import MOST_AT_ONCE
from exporter.records import GpuIdentity, Method, SourceHealth, StageGpu, StageMap
from exporter.snapshot import Snapshot
from exporter.web import CannotListenError, WebServer
from tests.settled import settled, stage
from tests.unit.test_collector import STATE
from tests.unit.test_pipeline_model import T, decode, facts, fold

CONFIG = Config(servers=(), listen_host="127.0.0.1", listen_port=0)


class Served:
    """A model that stands still, and a count of the scrapes it was told of."""

    def __init__(self) -> None:
        self.model = fold(facts(pp_size=2), decode(pp=1, running=7))
        self.scrapes = 0
        self.waiting: dict[str, str] = {}
        self.broken = False
        self.crashes: list[str] = []
        self.source = SourceHealth("journal:kimi", up=True, lines=3)

    def snapshot(self) -> Snapshot:
        if self.broken:
            raise RuntimeError("/secret/path is broken")
        return self.model.snapshot(T + 1)

    def state(self, snapshot: Snapshot) -> ExporterState:
        return replace(STATE, sources=self.healths())

    def scraped(self) -> None:
        self.scrapes += 1

    def seconds(self, server: str, dp_rank: int) -> tuple[Second, ...]:
        stages = {0: stage(0.9, 0.1), 1: stage(0.5, None, Method.RESIDENCY)}
        return tuple(settled(int(T) - back, stages, {0: 32}) for back in (90, 2, 1, 0))

    def watts(self, gpu: int, second: int) -> float | None:
        return 250.04 if gpu == 3 else None

    def healths(self) -> tuple[SourceHealth, ...]:
        return (self.source,)

    def waiting_for(self) -> dict[str, str]:
        return self.waiting

    def crashed(self, task: str, error: Exception) -> None:
        self.crashes.append(task)


@pytest.fixture(name="served")
def fixture_served() -> Served:
    return Served()


@pytest.fixture(name="recent")
def fixture_recent() -> RecentRecords:
    recent = RecentRecords(lambda: T)
    recent.keep(GpuIdentity(0, "GPU-0"), None)
    return recent


@pytest.fixture(name="http")
async def fixture_http(
    served: Served, recent: RecentRecords
) -> AsyncIterator[aiohttp.ClientSession]:
    server = WebServer(served, lambda seconds: recent.recording(seconds, ()))
    await server.start(CONFIG)
    base = f"http://127.0.0.1:{server.port}"
    async with aiohttp.ClientSession(base, auto_decompress=False) as session:
        yield session
    await server.close()


async def test_a_scrape_is_answered_as_text_unless_asked_otherwise(
    http: aiohttp.ClientSession,
) -> None:
    async with http.get("/metrics", headers={"Accept-Encoding": "identity"}) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert 'stage_running_requests{dp_rank="0",pp_rank="1",server="kimi"} 7.0' in (
            await answer.text()
        )


async def test_prometheus_gets_openmetrics(http: aiohttp.ClientSession) -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    headers = {"Accept": accept, "Accept-Encoding": "identity"}
    async with http.get("/metrics", headers=headers) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert (await answer.text()).endswith("# EOF\n")


async def test_a_client_that_takes_gzip_gets_the_same_text_packed(
    http: aiohttp.ClientSession,
) -> None:
    async with http.get("/metrics", headers={"Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"
        assert b"sglang_pipeline_stage_batches_total" in gzip.decompress(await answer.read())


async def test_positions_are_kept_for_scrapes_and_for_nothing_else(
    http: aiohttp.ClientSession, served: Served
) -> None:
    async with http.head("/metrics"), http.get("/"), http.get("/-/ready"):
        pass
    served.broken = True
    async with http.get("/metrics") as answer:
        assert answer.status == 500
    assert served.scrapes == 0
    served.broken = False
    async with http.get("/metrics"):
        pass
    assert served.scrapes == 1


async def test_an_error_shows_neither_path_nor_stack(
    http: aiohttp.ClientSession, served: Served
) -> None:
    served.broken = True
    async with http.get("/metrics") as answer:
        assert await answer.text() == "500 Internal Server Error\n"
    async with http.get("/nothing/<script>") as answer:
        assert (answer.status, await answer.text()) == (404, "404 Not Found\n")
    async with http.post("/metrics") as answer:
        assert answer.status == 405


async def test_ready_names_what_is_missing(http: aiohttp.ClientSession, served: Served) -> None:
    async with http.get("/-/ready") as answer:
        assert (answer.status, await answer.text()) == (200, "ready\n")
    served.waiting = {"journal:kimi": "permission denied; join the group systemd-journal"}
    async with http.get("/-/ready") as answer:
        assert answer.status == 503
        assert "journal:kimi: permission denied; join the group" in await answer.text()
    async with http.get("/-/healthy") as answer:
        assert answer.status == 200


async def test_the_snapshot_is_served_as_json(http: aiohttp.ClientSession) -> None:
    async with http.get("/api/v1/pipeline") as answer:
        body = await answer.json()
    (server,) = body["servers"]
    assert server["server"] == "kimi"
    assert server["facts"] == {"pp_size": 2}
    (pipeline,) = server["pipelines"]
    assert pipeline["slots"]["slots"] == 2
    assert pipeline["occupancy_ratio"] is None
    running = {stage["pp_rank"]: stage["running_reqs"] for stage in pipeline["stages"]}
    assert running == {0: None, 1: 7}


async def timeline(http: aiohttp.ClientSession, query: str) -> dict[str, Any]:
    headers = {"Accept-Encoding": "identity"}
    async with http.get(f"/api/v1/timeline?{query}", headers=headers) as answer:
        assert answer.status == 200
        body: dict[str, Any] = await answer.json()
        return body


async def test_the_timeline_is_served_as_json(http: aiohttp.ClientSession) -> None:
    body = await timeline(http, "seconds=30")
    (pipeline,) = body["pipelines"]
    assert (pipeline["server"], pipeline["dp_rank"]) == ("kimi", 0)
    assert [each["second"] - int(T) for each in pipeline["seconds"]] == [-2, -1, 0]
    assert pipeline["seconds"][0] == {
        "second": int(T) - 2,
        "working_ratio": {"0": 0.9, "1": 0.5},
        "waiting_ratio": {"0": 0.1},
        "in_flight_ratio": 1.0,
    }
    assert body["since"] == T + 1 - 30


async def test_cells_are_planes_of_bytes(http: aiohttp.ClientSession, served: Served) -> None:
    map_ = StageMap("kimi", T, (StageGpu(0, 0, 0, 3), StageGpu(0, 1, 0, 4)), "configuration")
    served.model.fold(map_)
    body = await timeline(http, "seconds=30&cells=20")
    assert body["cells"]["units"] == 250
    assert body["cells"]["planes"] == ["observed", "working", "waiting", "method"]
    second = body["pipelines"][0]["seconds"][-1]
    planes = base64.b64decode(second["cells"]["1"])
    methods = body["cells"]["methods"]
    assert [planes[0], planes[50], planes[100]] == [250, 125, 0]
    assert methods[planes[150]] == "residency"
    assert len(planes) == 200
    assert second["batch"] == {"0": 32}
    assert second["watts"] == {"0": 250.0}


async def test_the_timeline_ends_where_it_is_asked_to(http: aiohttp.ClientSession) -> None:
    body = await timeline(http, f"seconds=60&until={int(T) - 60}")
    (pipeline,) = body["pipelines"]
    assert [each["second"] - int(T) for each in pipeline["seconds"]] == [-90]


@pytest.mark.parametrize("query", ["cells=200", "cells=x", "until=x", "until=-1", "until=1e9"])
async def test_cells_and_ends_that_do_not_exist_are_refused(
    http: aiohttp.ClientSession, query: str
) -> None:
    async with http.get(f"/api/v1/timeline?{query}") as answer:
        assert answer.status == 400
        assert "epoch second" in await answer.text()


@pytest.mark.parametrize("seconds", ["0", "-1", "601", "x", "1e2", "٣", "9" * 50, "0" * 9 + "1"])
@pytest.mark.parametrize(("path", "most"), [("timeline", 600), ("recording", 600)])
async def test_a_bad_number_of_seconds_is_refused(
    http: aiohttp.ClientSession, path: str, most: int, seconds: str
) -> None:
    async with http.get(f"/api/v1/{path}", params={"seconds": seconds}) as answer:
        assert answer.status == 400
        assert f"from 1 to {most}" in await answer.text()


async def test_the_newest_seconds_are_served_as_a_file(http: aiohttp.ClientSession) -> None:
    async with http.get("/api/v1/recording?seconds=600") as answer:
        assert answer.headers["Content-Type"] == "application/gzip"
        assert answer.headers["Content-Disposition"] == (
            'attachment; filename="sglang-pipeline-20261130T004320Z.jsonl.gz"'
        )
        header, card, rest = gzip.decompress(await answer.read()).split(b"\n")
    assert json.loads(header)["type"] == "header"
    assert json.loads(card)["uuid"] == "GPU-0"
    assert rest == b""
    async with http.head("/api/v1/recording") as answer:
        assert (answer.status, await answer.read()) == (200, b"")


class SlowRecording:
    """One whose first piece comes when it may."""

    since = T

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may = threading.Event()

    def compressed(self) -> Iterator[bytes]:
        self.begun.release()
        self.may.wait(20)
        yield b"piece"


async def test_a_third_download_at_once_is_told_to_come_again(served: Served) -> None:
    slow = SlowRecording()
    server = WebServer(served, lambda _seconds: slow)  # type: ignore[arg-type]  # stands in for one
    await server.start(CONFIG)
    url = f"http://127.0.0.1:{server.port}/api/v1/recording"
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(url) as first, session.get(url) as second:
                await asyncio.to_thread(slow.begun.acquire)
                await asyncio.to_thread(slow.begun.acquire)
                async with session.get(url) as third:
                    assert third.status == 503
                    assert int(third.headers["Retry-After"]) > 0
                async with session.get(url.replace("recording", "pipeline")) as other:
                    assert other.status == 200, "others are answered meanwhile"
                slow.may.set()
                assert (await first.read(), await second.read()) == (b"piece", b"piece")
            async with session.get(url) as again:
                assert await again.read() == b"piece"
        finally:
            slow.may.set()
            await server.close()


async def test_a_download_that_is_given_up_makes_room_and_no_noise(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    slow = SlowRecording()
    server = WebServer(served, lambda _seconds: slow)  # type: ignore[arg-type]  # stands in for one
    await server.start(CONFIG)
    url = f"http://127.0.0.1:{server.port}/api/v1/recording"
    try:
        for _ in range(MOST_AT_ONCE):
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                assert answer.status == 200
                await asyncio.to_thread(slow.begun.acquire)
        slow.may.set()
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            status = 503
            while status == 503:  # until the server has seen that they went away
                async with session.get(url) as answer:
                    status = answer.status
        assert status == 200
    finally:
        slow.may.set()
        await server.close()
    assert caplog.records == []


@pytest.mark.parametrize("path", ["/api/v1/live", "/api/v1/recording"])
async def test_a_client_that_is_gone_before_it_is_answered_is_no_news(
    served: Served, recent: RecentRecords, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    server = WebServer(served, lambda seconds: recent.recording(seconds, ()))
    await server.start(CONFIG)
    _, client = await asyncio.open_connection("127.0.0.1", server.port)
    client.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    client.write_eof()
    client.close()
    await client.wait_closed()
    url = f"http://127.0.0.1:{server.port}/-/healthy"
    # Answered later than what came before it.
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
    await server.close()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/static/page.js", "text/javascript"),
        ("/static/page.css", "text/css"),
        ("/static/palette.css", "text/css"),
    ],
)
async def test_the_page_allows_itself_its_own_files_and_nothing_else(
    http: aiohttp.ClientSession, path: str, kind: str
) -> None:
    async with http.get(path) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == f"{kind}; charset=utf-8"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        tag = answer.headers["ETag"]
    async with http.get(path, headers={"If-None-Match": tag}) as answer:
        assert (answer.status, await answer.read()) == (304, b"")
    async with http.get(path, headers={"If-None-Match": '"another"'}) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("name", ["__init__.py", "feed.py", "..%2Ffeed.py", "%2Fetc%2Fpasswd", ""])
async def test_only_the_page_has_static_files(http: aiohttp.ClientSession, name: str) -> None:
    async with http.get(f"/static/{name}") as answer:
        assert answer.status == 404


async def test_a_taken_port_names_the_option_to_change(
    http: aiohttp.ClientSession, recent: RecentRecords
) -> None:
    taken = replace(CONFIG, listen_port=http._base_url.port)  # type: ignore[union-attr]
    with pytest.raises(CannotListenError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*--listen"):
        await WebServer(Served(), lambda seconds: recent.recording(seconds, ())).start(taken)


async def test_an_address_that_nobody_knows_is_told_as_that(recent: RecentRecords) -> None:
    unknown = replace(CONFIG, listen_host="fe80::1%nowhere")
    server = WebServer(Served(), lambda seconds: recent.recording(seconds, ()))
    with pytest.raises(CannotListenError, match=r"cannot listen on .*: name or service not known;"):
        await server.start(unknown)


async def test_an_ipv6_address_stands_in_brackets_where_it_is_told(recent: RecentRecords) -> None:
    server = WebServer(Served(), lambda seconds: recent.recording(seconds, ()))
    try:
        await server.start(replace(CONFIG, listen_host="::1"))
    except CannotListenError:
        pytest.skip("there is no IPv6 here")
    assert server.url == f"http://[::1]:{server.port}"
    await server.close()


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("gzip", True),
        ("GZIP", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0.0, identity", False),
        ("identity", False),
        ("", False),
    ],
)
async def test_gzip_is_used_only_where_it_is_taken(
    http: aiohttp.ClientSession, accepted: str, packed: bool
) -> None:
    async with http.get("/metrics", headers={"Accept-Encoding": accepted}) as answer:
        assert ("Content-Encoding" in answer.headers) is packed


async def test_malformed_requests_write_nothing_to_the_log(
    http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    async with http.get("/metrics", headers={"X-Long": "x" * 9000}) as answer:
        assert answer.status == 400
    assert caplog.records == []


async def test_a_wrong_method_is_told_the_right_ones(http: aiohttp.ClientSession) -> None:
    async with http.post("/metrics") as answer:
        assert "GET" in answer.headers["Allow"]


async def test_reloading_over_http_is_off_unless_it_is_turned_on(
    http: aiohttp.ClientSession,
) -> None:
    async with http.post("/-/reload") as answer:
        assert answer.status == 403
        assert "--web.enable-reload" in await answer.text()
