"""The stream behind the live page: made once for all, kept short for each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from exporter.page.feed import HELD_EVENTS, MOST_VIEWERS, LiveFeed, TooManyViewersError
from exporter.page.verdicts import RunningVerdicts
from exporter.recent.records import RecentRecords
from exporter.web import WebServer
from tests.settled import settled, stage
from tests.unit.test_pipeline_model import T
from tests.unit.test_web import CONFIG, Served


class Watched(Served):
    """Counts how often it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.breaks_once = False
        self.made = [settled(int(T) - back, {0: stage(0.5)}, {0: 8}) for back in (3, 2, 1, 0)]

    def snapshot(self):
        self.looks += 1
        if self.breaks_once:
            self.breaks_once = False
            raise RuntimeError
        return super().snapshot()

    def seconds(self, server, dp_rank):
        return tuple(self.made)


@pytest.fixture(name="watched")
def fixture_watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr("exporter.page.feed.LOOK_SECONDS", 0.0)
    return Watched()


@pytest.fixture(name="feed")
def fixture_feed(watched: Watched) -> LiveFeed:
    recent = RecentRecords(lambda: T)
    verdicts = RunningVerdicts(lambda seconds: recent.recording(seconds, ()), watched.seconds)
    return LiveFeed(watched, verdicts)


def nothing() -> None:
    pass


def state(event: bytes | None) -> dict[str, Any]:
    assert event is not None
    fields = dict(line.split(b": ", 1) for line in event.strip().split(b"\n"))
    assert fields[b"event"] == b"state"
    found: dict[str, Any] = json.loads(fields[b"data"])
    return found | {"id": int(fields[b"id"])}


def shown(event: bytes | None) -> list[int]:
    (pipeline,) = state(event)["timeline"]["pipelines"]
    return [second["second"] - int(T) for second in pipeline["seconds"]]


async def test_the_first_event_has_the_last_minute_and_the_next_what_is_new(
    feed: LiveFeed, watched: Watched
) -> None:
    with feed.viewing(None, nothing) as viewer:
        first = await viewer.events.get()
        assert shown(first) == [-3, -2, -1, 0]
        assert state(first)["id"] == int(T)
        watched.made.append(settled(int(T) + 1, {0: stage(0.5)}))
        assert shown(await viewer.events.get()) == [1]
        assert shown(await viewer.events.get()) == []


async def test_who_comes_back_gets_what_was_missed(feed: LiveFeed) -> None:
    with feed.viewing(int(T) - 2, nothing) as viewer:
        assert shown(await viewer.events.get()) == [-1, 0]
    with feed.viewing(1, nothing) as viewer:  # from before the exporter's memory
        assert shown(await viewer.events.get()) == [-3, -2, -1, 0]


async def test_all_viewers_get_the_same_bytes(feed: LiveFeed) -> None:
    with feed.viewing(None, nothing) as one, feed.viewing(None, nothing) as other:
        await one.events.get()
        await other.events.get()
        assert await one.events.get() is await other.events.get()


async def test_nothing_is_looked_at_while_nobody_watches(feed: LiveFeed, watched: Watched) -> None:
    await asyncio.sleep(0.01)
    assert watched.looks == 0
    with feed.viewing(None, nothing) as viewer:
        for _ in range(3):
            await viewer.events.get()
    looks = watched.looks
    assert looks >= 3
    await asyncio.sleep(0.01)
    assert watched.looks == looks


async def test_who_does_not_read_is_let_go_and_others_are_not_held_up(feed: LiveFeed) -> None:
    let_go = asyncio.Event()
    with feed.viewing(None, let_go.set) as slow, feed.viewing(None, nothing) as quick:
        for _ in range(HELD_EVENTS + 3):
            await quick.events.get()
        await let_go.wait()
        assert slow.events.qsize() == HELD_EVENTS


async def test_a_bug_in_one_look_leaves_the_next_ones(feed: LiveFeed, watched: Watched) -> None:
    with feed.viewing(None, nothing) as viewer:
        await viewer.events.get()
        watched.breaks_once = True
        await viewer.events.get()
    assert watched.crashes == ["live_page"]


async def test_the_number_of_viewers_is_bounded(feed: LiveFeed) -> None:
    def one_more(count: int) -> None:
        if count:
            with feed.viewing(None, nothing):
                one_more(count - 1)
        else:
            with pytest.raises(TooManyViewersError), feed.viewing(None, nothing):
                pass

    one_more(MOST_VIEWERS)


# --- over HTTP -----------------------------------------------------------------------------------


@pytest.fixture(name="http")
async def fixture_http(watched: Watched) -> AsyncIterator[aiohttp.ClientSession]:
    recent = RecentRecords(lambda: T)
    server = WebServer(watched, lambda seconds: recent.recording(seconds, ()))
    await server.start(CONFIG)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        yield session
    await server.close()


async def next_event(answer: aiohttp.ClientResponse) -> bytes:
    lines = b""
    while not lines.endswith(b"\n\n"):
        lines += await answer.content.readline()
    return lines


async def test_events_are_served_and_end_with_the_exporter(watched: Watched) -> None:
    recent = RecentRecords(lambda: T)
    server = WebServer(watched, lambda seconds: recent.recording(seconds, ()))
    await server.start(CONFIG)
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}", read_bufsize=1 << 20) as session,
        session.get("/api/v1/live") as answer,
    ):
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store"
        assert await next_event(answer) == b"retry: 2000\n\n"
        assert shown(await next_event(answer)) == [-3, -2, -1, 0]
        await server.close()
        async for _ in answer.content:
            pass
        assert answer.content.at_eof()


@pytest.mark.parametrize("seen", ["-1", "x", "9" * 30, "1.5", "٣"])
async def test_an_event_id_that_is_none_of_ours_is_nobodys(
    watched: Watched, http: aiohttp.ClientSession, seen: str
) -> None:
    headers = {"Last-Event-ID": seen}
    async with http.get("/api/v1/live", headers=headers) as answer:
        await next_event(answer)
        assert shown(await next_event(answer)) == [-3, -2, -1, 0]


async def test_a_look_with_head_watches_nothing(
    watched: Watched, http: aiohttp.ClientSession
) -> None:
    async with http.head("/api/v1/live") as answer:
        assert answer.status == 200
