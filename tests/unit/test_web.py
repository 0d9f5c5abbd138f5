"""The HTTP server over what it is given to serve."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import aiohttp
import pytest

from exporter.collector import ExporterState
from exporter.config import Config
from exporter.pipeline.figures import SecondFigures
from exporter.recent.records import RecentRecords
from exporter.recording_download import MOST_AT_ONCE
from exporter.records import GpuIdentity, SourceHealth
from exporter.snapshot import Snapshot
from exporter.web import CannotListenError, WebServer
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
        self.source = SourceHealth("journal:kimi", up=True, lines=3)

    def snapshot(self) -> Snapshot:
        if self.broken:
            raise RuntimeError("/secret/path is broken")
        return self.model.snapshot(T + 1)

    def state(self, snapshot: Snapshot) -> ExporterState:
        return replace(STATE, sources=self.healths())

    def scraped(self) -> None:
        self.scrapes += 1

    def timelines(self, seconds: float) -> dict[tuple[str, int], tuple[SecondFigures, ...]]:
        second = SecondFigures(int(T), {0: 0.9, 1: 0.5}, {0: 0.1}, 1.0)
        return {("kimi", 0): (second,)}

    def healths(self) -> tuple[SourceHealth, ...]:
        return (self.source,)

    def waiting_for(self) -> dict[str, str]:
        return self.waiting


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


async def test_positions_are_kept_for_each_answered_get_and_for_nothing_else(
    http: aiohttp.ClientSession, served: Served
) -> None:
    async with http.get("/metrics"):
        pass
    assert served.scrapes == 1
    async with http.head("/metrics"), http.get("/"), http.get("/-/ready"):
        pass
    served.broken = True
    async with http.get("/metrics") as answer:
        assert answer.status == 500
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


async def test_the_timeline_is_served_as_json(http: aiohttp.ClientSession) -> None:
    async with http.get("/api/v1/timeline?seconds=30") as answer:
        body = await answer.json()
    (pipeline,) = body["pipelines"]
    assert (pipeline["server"], pipeline["dp_rank"]) == ("kimi", 0)
    assert pipeline["seconds"][0]["working_ratio"] == {"0": 0.9, "1": 0.5}
    assert body["since"] == T + 1 - 30


@pytest.mark.parametrize("seconds", ["0", "-1", "601", "x", "1e2", "٣", "9" * 50, "0" * 9 + "1"])
@pytest.mark.parametrize(("path", "most"), [("timeline", 300), ("recording", 600)])
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


async def test_the_landing_page_shows_stages_and_escapes_what_it_shows(
    http: aiohttp.ClientSession, served: Served
) -> None:
    served.model = fold(decode(server="<b>kimi</b>", pp=1, running=7))
    served.source = replace(served.source, last_error="<i>no</i>")
    async with http.get("/", headers={"Accept-Encoding": "identity"}) as answer:
        page = await answer.text()
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "<td>0 / 1</td><td>7</td>" in page
    assert "&lt;b&gt;kimi&lt;/b&gt;" in page
    assert "&lt;i&gt;no&lt;/i&gt;" in page


async def test_a_taken_port_names_the_option_to_change(
    http: aiohttp.ClientSession, recent: RecentRecords
) -> None:
    taken = replace(CONFIG, listen_port=http._base_url.port)  # type: ignore[union-attr]
    with pytest.raises(CannotListenError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*--listen"):
        await WebServer(Served(), lambda seconds: recent.recording(seconds, ())).start(taken)


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
