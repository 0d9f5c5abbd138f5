"""HTTP: /metrics, health, readiness, the JSON and the live page, from snapshots alone.

No request touches the driver, the journal or a file other than the state file. No error page
shows a path or a stack trace.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from aiohttp import web
from prometheus_client.process_collector import ProcessCollector

from exporter.api import pipeline_json, timeline_json
from exporter.collector import ExporterState, SnapshotCollector
from exporter.config import Config
from exporter.exposition import exposition
from exporter.page.feed import LiveFeed
from exporter.page.files import PageFiles
from exporter.page.stream import LiveStream
from exporter.page.verdicts import RunningVerdicts
from exporter.pipeline.clock import Second
from exporter.recent.records import MOST_SECONDS as MOST_RECORDED_SECONDS
from exporter.recent.records import RecentRecording
from exporter.recording_download import RecordingDownload
from exporter.records import SourceHealth
from exporter.snapshot import Snapshot

log = logging.getLogger(__name__)

_CLIENT_ERRORS = logging.getLogger(__name__ + ".client_errors")
_CLIENT_ERRORS.setLevel(logging.CRITICAL)
"""What aiohttp says of malformed requests: any client could fill the log with it."""

SHUTDOWN_SECONDS = 1.0
MOST_SECONDS = 600
"""How far back /api/v1/timeline can look."""
THREAD_PACKS_BYTES = 1 << 16
"""A longer answer is packed by a thread: ten minutes of cells are 2 MB."""
GZIP_LEVEL = 1
"""Fast: text this repetitive shrinks to a tenth at any level."""


class Served(Protocol):
    """What the server needs of `ingest.Ingest`."""

    def snapshot(self) -> Snapshot:
        """The model at this instant."""

    def state(self, snapshot: Snapshot) -> ExporterState:
        """The exporter itself, beside that snapshot."""

    def seconds(self, server: str, dp_rank: int) -> Sequence[Second]:
        """The settled seconds of a pipeline, oldest first."""

    def watts(self, gpu: int, second: int) -> float | None:
        """Mean power of a GPU over an epoch second."""

    def scraped(self) -> None:
        """Keeps the reading positions behind the newest snapshot."""

    def healths(self) -> tuple[SourceHealth, ...]:
        """How each source fares."""

    def waiting_for(self) -> Mapping[str, str]:
        """Sources that are not read, with the reason; empty when ready."""


class CannotListenError(Exception):
    """The address cannot be listened on; the message names the remedy."""


class WebServer:
    """The running HTTP server; `port` is the real one, also when 0 was asked for."""

    def __init__(self, served: Served, recording: Callable[[int], RecentRecording]) -> None:
        """Serves nothing yet; `recording` gives the newest seconds as they are now."""
        self._served = served
        self._download = RecordingDownload(recording)
        self._feed = LiveFeed(served, RunningVerdicts(recording, served.seconds))
        self._files = PageFiles()
        self._process = ProcessCollector(registry=None)
        app = web.Application(middlewares=[_plain_errors])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/-/healthy", self._healthy)
        app.router.add_get("/-/ready", self._ready)
        app.router.add_get("/api/v1/pipeline", self._pipeline)
        app.router.add_get("/api/v1/timeline", self._timeline)
        app.router.add_get("/api/v1/recording", self._recording)
        app.router.add_get("/api/v1/live", LiveStream(self._feed).answer)
        app.router.add_get("/", self._page)
        app.router.add_get("/static/{name}", self._file)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_SECONDS,
            logger=_CLIENT_ERRORS,
        )
        self.port = 0

    async def start(self, config: Config) -> None:
        """Listens on the configured address.

        Raises:
            CannotListenError: The address is taken or not ours.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, config.listen_host, config.listen_port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            address = f"{config.listen_host or '*'}:{config.listen_port}"
            raise CannotListenError(
                f"cannot listen on {address}: {os.strerror(error.errno or 0).lower()}; "
                "choose another address with --listen ADDRESS:PORT"
            ) from error
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Answers what is in progress, at most a second, and stops listening."""
        self._feed.close()
        await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        snapshot = self._served.snapshot()
        collector = SnapshotCollector(snapshot, self._served.state(snapshot), self._process)
        body, content_type = exposition(collector, request.headers.get("Accept", ""))
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if _takes_gzip(request.headers.get("Accept-Encoding", "")):
            body = gzip.compress(body, GZIP_LEVEL, mtime=0)
            headers["Content-Encoding"] = "gzip"
        if request.method == "GET":
            # Before the answer leaves: a scrape that Prometheus has must not be read again.
            self._served.scraped()
        return web.Response(body=body, headers=headers)

    async def _healthy(self, _request: web.Request) -> web.Response:
        return web.Response(text="healthy\n")

    async def _ready(self, _request: web.Request) -> web.Response:
        waiting = self._served.waiting_for()
        if not waiting:
            notes = [f"{h.name}: {h.last_error}\n" for h in self._served.healths() if h.last_error]
            return web.Response(text="ready\n" + "".join(notes))
        lines = [f"{name}: {reason}\n" for name, reason in waiting.items()]
        return web.Response(status=503, text="not ready\n" + "".join(lines))

    async def _pipeline(self, _request: web.Request) -> web.Response:
        return web.json_response(pipeline_json(self._served.snapshot(), self._served.healths()))

    async def _timeline(self, request: web.Request) -> web.Response:
        seconds = _seconds_of(request, MOST_SECONDS)
        if seconds is None:
            return _bad_seconds(MOST_SECONDS)
        cells, until = request.query.get("cells", ""), request.query.get("until", "")
        if cells not in ("", "20") or not re.fullmatch("[0-9]{0,12}", until, re.ASCII):
            return web.Response(
                status=400, text="cells is 20 or left out, until a whole epoch second or left out\n"
            )
        snapshot = self._served.snapshot()
        end = int(until) if until else None
        since = (snapshot.taken_at if end is None else end) - seconds
        found = timeline_json(snapshot, self._served, since, end, cells=bool(cells))
        response = web.Response(
            text=json.dumps(found),
            content_type="application/json",
            zlib_executor_size=THREAD_PACKS_BYTES,
        )
        response.enable_compression()
        return response

    async def _recording(self, request: web.Request) -> web.StreamResponse:
        seconds = _seconds_of(request, MOST_RECORDED_SECONDS)
        if seconds is None:
            return _bad_seconds(MOST_RECORDED_SECONDS)
        return await self._download.answer(request, seconds)

    async def _page(self, request: web.Request) -> web.Response:
        return self._files.answer(request, "index.html")

    async def _file(self, request: web.Request) -> web.Response:
        return self._files.answer(request, request.match_info["name"])


def _seconds_of(request: web.Request, most: int) -> int | None:
    """How far a request looks back; `None` if it names no whole number from 1 to `most`."""
    text = request.query.get("seconds", "60")
    if not re.fullmatch("[0-9]{1,3}", text) or not 1 <= int(text) <= most:
        return None
    return int(text)


def _bad_seconds(most: int) -> web.Response:
    return web.Response(status=400, text=f"seconds must be a whole number from 1 to {most}\n")


def _takes_gzip(accept_encoding: str) -> bool:
    """Whether gzip is named and not refused by a quality of 0 (RFC 9110, 12.5.3)."""
    for entry in accept_encoding.lower().split(","):
        coding, _, quality = entry.partition(";")
        if coding.strip() in ("gzip", "x-gzip"):
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0{0,3})?\s*", quality)
    return False


@web.middleware
async def _plain_errors(request: web.Request, handler: web.Handler) -> web.StreamResponse:  # type: ignore[name-defined]  # aiohttp keeps its handler type private
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPException as error:
        allow = {key: error.headers[key] for key in ("Allow",) if key in error.headers}
        text = f"{error.status} {error.reason}\n"
        return web.Response(status=error.status, text=text, headers=allow)
    except Exception:
        log.exception("a request failed path=%r", request.path)
        return web.Response(status=500, text="500 Internal Server Error\n")
    return response
