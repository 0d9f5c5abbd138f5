"""Watching through an exporter: one that is played, and servers that are none."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from exporter.diagnose.outcome import Outcome
from exporter.diagnose.remote import watch_exporter
from exporter.diagnose.remote_exporter import ExporterError, RemoteExporter
from exporter.diagnose.remote_watch import RemoteWatch, state_text
from exporter.diagnosis.findings import Verdict
from exporter.recent.records import RecentRecords
from exporter.recordings.reader import read_records
from exporter.records import LoadEvent, LoadPhase, Record, RingSamples, Signal, ThroughputReference
from tests.unit.test_recording import BEGAN, Clock

GOOD = {"taken_at": 0.0, "servers": []}


def silent() -> str:
    return ""


async def nothing() -> None:
    return


class PlayedExporter:
    """An exporter on a clock that is moved by hand; it samples one GPU every 0.2 s, 2 s late."""

    name = "http://gpu-host:10810"

    def __init__(self, ahead_seconds: float = 0.0) -> None:
        self.clock = Clock()
        self.ahead_seconds = ahead_seconds
        self.asked: list[int] = []
        self.is_dead = False
        self._recent = RecentRecords(self.clock)
        self._sampled = 0

    def now(self) -> float:
        return self.clock.now

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        while BEGAN + self._sampled / 5 <= self.clock.now - 2.0:
            taken = ((BEGAN + self._sampled / 5, self._sampled % 100 / 100),)
            self._recent.keep(RingSamples(0, Signal.UTILIZATION, 0.2, taken), None)
            self._sampled += 1

    async def download(self, seconds: int, path: Path) -> None:
        if self.is_dead:
            raise ExporterError("it is dead")
        self.asked.append(seconds)
        body = b"".join(self._recent.recording(seconds, ()).compressed())
        await asyncio.to_thread(path.write_bytes, body)


def samples(records: list[tuple[float, Record]]) -> list[float]:
    return [round(at - BEGAN, 3) for at, record in records if isinstance(record, RingSamples)]


def watch_of(exporter: PlayedExporter, folder: Path) -> RemoteWatch:
    return RemoteWatch(exporter, folder)  # type: ignore[arg-type]  # stands in for one


async def test_pieces_fetched_meanwhile_are_one_recording_without_a_gap_or_a_double(
    tmp_path: Path,
) -> None:
    exporter = PlayedExporter()
    exporter.pass_time(2.0)
    watch = watch_of(exporter, tmp_path)
    for _ in range(50):
        exporter.pass_time(30.0)
        await watch.fetch()
    await watch.until(nothing(), silent)
    assert samples(list(watch.timed())) == [index / 5 for index in range(11, 7501)]
    assert max(exporter.asked) <= 35
    assert watch.trouble is None


async def test_a_load_is_put_on_the_clock_of_the_exporter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = PlayedExporter(ahead_seconds=100.0)
    watch = watch_of(exporter, tmp_path)
    exporter.pass_time(10.0)
    watch.take(LoadEvent(BEGAN + 10 - 100, LoadPhase.START, 1))
    exporter.pass_time(10.0)
    watch.take(LoadEvent(BEGAN + 20 - 100, LoadPhase.END, 1))
    watch.take(ThroughputReference(1, 34.3))
    exporter.pass_time(10.0)
    await watch.until(nothing(), silent)
    order = [record for _, record in watch.timed() if not isinstance(record, RingSamples)]
    assert order == [
        LoadEvent(BEGAN + 10, LoadPhase.START, 1),
        LoadEvent(BEGAN + 20, LoadPhase.END, 1),
        ThroughputReference(1, 34.3),
    ]
    times = [at for at, _ in watch.timed()]
    assert times == sorted(times)
    watch.warn_of_clocks()
    assert "100.0 s ahead of this host's" in caplog.text


async def test_what_was_seen_before_an_exporter_died_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exporter = PlayedExporter()
    watch = watch_of(exporter, tmp_path)
    exporter.pass_time(30.0)
    await watch.fetch()
    exporter.is_dead = True
    exporter.pass_time(30.0)
    await watch.until(nothing(), silent)
    assert samples(list(watch.timed()))[-1] == 28.0
    assert "it is dead; what was seen until then is used" in caplog.text


async def test_an_exporter_that_died_before_it_told_anything_is_an_error(tmp_path: Path) -> None:
    exporter = PlayedExporter()
    watch = watch_of(exporter, tmp_path)
    exporter.is_dead = True
    with pytest.raises(ExporterError, match="it is dead"):
        await watch.until(nothing(), silent)


async def test_what_fails_meanwhile_ends_the_watch(tmp_path: Path) -> None:
    async def fails() -> None:
        raise ValueError("no server to load")

    with pytest.raises(ValueError, match="no server to load"):
        await watch_of(PlayedExporter(), tmp_path).until(fails(), silent)


@pytest.mark.parametrize(
    "answer",
    [
        {"servers": []},
        {"servers": [3]},
        {"servers": [{"pipelines": {}}]},
        {"servers": [{"pipelines": [{"slots": 1, "stages": [1, {"queued_reqs": "x"}]}]}]},
    ],
)
def test_a_state_that_says_nothing_is_unknown(answer: dict[str, object]) -> None:
    assert state_text(answer) == "occupancy ?, running ?, queue ?"


# --- over HTTP -----------------------------------------------------------------------------------


@asynccontextmanager
async def server_of(
    *, authorization: str | None = None, ahead: float = 0.0, **answers: Callable[[], web.Response]
) -> AsyncIterator[str]:
    """The address of a server with these answers for /api/v1/NAME, 404 for all else."""

    async def handle(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization")
        if authorization is not None and given != authorization:
            return web.Response(status=401)
        name = request.path.rpartition("/")[2]
        if name == "pipeline" and name not in answers:
            return web.json_response(GOOD | {"taken_at": time.time() + ahead})
        return answers[name]() if name in answers else web.Response(status=404)

    app = web.Application()
    app.router.add_get("/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def empty_recording() -> web.Response:
    return web.Response(
        body=b"".join(RecentRecords(time.time).recording(1, ()).compressed()),
        content_type="application/gzip",
    )


async def outcome_of(address: str) -> Outcome:
    return await watch_exporter(RemoteExporter(address), 0.01)


async def test_an_older_exporter_is_told_to_be_updated() -> None:
    async with server_of() as address:
        with pytest.raises(ExporterError, match="keeps no recordings; update it"):
            await outcome_of(address)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: web.Response(status=404),
        lambda: web.Response(text="<html>prompt</html>"),
        lambda: web.json_response([]),
        lambda: web.json_response({"servers": []}),
        lambda: web.json_response({"servers": [], "taken_at": "now"}),
    ],
)
async def test_what_is_no_exporter_is_told_so(answer: Callable[[], web.Response]) -> None:
    async with server_of(pipeline=answer) as address:
        with pytest.raises(ExporterError, match="no exporter answers there; give") as error:
            await outcome_of(address)
    assert "prompt" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "said"),
    [(302, "a redirect; give the address"), (500, "its log may say why"), (503, "try again")],
)
async def test_a_refusal_names_its_remedy(status: int, said: str) -> None:
    async with server_of(pipeline=lambda: web.Response(status=status)) as address:
        with pytest.raises(ExporterError, match=f"answered {status}.*{said}"):
            await outcome_of(address)


async def test_user_and_password_of_the_address_are_used_and_never_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    wanted = "Basic " + base64.b64encode(b"user:gehe:im").decode()
    async with server_of(authorization=wanted, recording=empty_recording) as address:
        with pytest.raises(ExporterError, match="401; give its user in the address"):
            await outcome_of(address)
        wrong = address.replace("//", "//user:falsch@")
        with pytest.raises(ExporterError, match="are user and password right") as error:
            await outcome_of(wrong)
        assert "falsch" not in str(error.value)
        await outcome_of(address.replace("//", "//user:gehe%3Aim@"))
    assert "gehe" not in caplog.text


async def test_an_exporter_that_sees_no_server_cannot_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    complaint = "not ready\njournal:kimi: no entry of unit kimi yet\n"
    async with server_of(
        recording=empty_recording, ready=lambda: web.Response(status=503, text=complaint)
    ) as address:
        outcome = await outcome_of(address)
    assert outcome.diagnosis.verdict is Verdict.CANNOT_TELL
    assert "saw no batch line" in caplog.text
    assert "journal:kimi: no entry of unit kimi yet" in caplog.text


@pytest.mark.parametrize("address", ["gpu-host:10810", "ftp://x", "http://", "http://x:y@h:99999"])
def test_an_address_that_is_none_is_not_repeated(address: str) -> None:
    with pytest.raises(ExporterError, match=r"like http://gpu-host:10810") as error:
        RemoteExporter(address)
    assert "x:y" not in str(error.value)


async def test_the_clocks_are_compared(tmp_path: Path) -> None:
    async with (
        server_of(ahead=50.0, recording=empty_recording) as address,
        RemoteExporter(address) as exporter,
    ):
        await exporter.check(tmp_path)
        assert exporter.ahead_seconds == pytest.approx(50.0, abs=5.0)
        await exporter.download(1, tmp_path / "got")
    assert list(read_records(tmp_path / "got")) == []


async def test_a_connection_that_breaks_is_an_error_with_a_remedy() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ExporterError, match="the connection broke; is it running"):
            await outcome_of(f"http://127.0.0.1:{port}")
