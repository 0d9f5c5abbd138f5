"""HTTP: /metrics, health, readiness, the JSON and the live page, from snapshots alone.

No request touches the driver, the journal or a file other than the state file and those of the web
configuration. No error page shows a path or a stack trace.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from exporter.api import pipeline_json, timeline_json
from exporter.collector import ExporterState
from exporter.config import Config
from exporter.exposition import Exposition, content_type_of, takes_gzip
from exporter.page.feed import LiveFeed
from exporter.page.files import PageFiles
from exporter.page.stream import LiveStream
from exporter.page.verdicts import RunningVerdicts
from exporter.pipeline.clock import Second
from exporter.recent.records import MOST_SECONDS as MOST_RECORDED_SECONDS
from exporter.recent.records import RecentRecording
from exporter.recording_download import RecordingDownload
from exporter.records import SourceHealth
from exporter.reload_request import Reload, ReloadRequest
from exporter.snapshot import Snapshot
from exporter.web_limits.connections import Limits
from exporter.web_limits.refusals import Refusals
from exporter.web_limits.requests import Turns
from exporter.web_limits.runner import LimitedRunner

if TYPE_CHECKING:
    from exporter.web_config.file import WebConfigFile

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 1.0
MOST_SECONDS = 600
"""How far back /api/v1/timeline can look."""

_LIMITS = Limits()


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

    def crashed(self, task: str, error: Exception) -> None:
        """Counts and logs an exception nobody foresaw."""


class CannotListenError(Exception):
    """The address cannot be listened on; the message names the remedy."""


class WebServer:
    """The running HTTP server; `port` is the real one, also when 0 was asked for."""

    def __init__(
        self,
        served: Served,
        recording: Callable[[int], RecentRecording],
        reload: Reload | None = None,
        limits: Limits = _LIMITS,
    ) -> None:
        """Serves nothing yet.

        `recording` gives the newest seconds as they are now; `reload` is what /-/reload does.
        """
        self.scheme = "http"
        self.web_config: WebConfigFile | None = None
        """Who may ask; `None`: everybody."""
        self._listener: asyncio.Server | None = None
        self._served = served
        self._download = RecordingDownload(recording)
        self._feed = LiveFeed(served, RunningVerdicts(recording, served.seconds))
        self._files = PageFiles()
        self._refusals = refusals = Refusals()
        self._exposition = Exposition(served, self._beside)
        self._turns = Turns()
        app = web.Application(middlewares=[_plain_errors])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/-/healthy", self._healthy)
        app.router.add_get("/-/ready", self._ready)
        app.router.add_post("/-/reload", ReloadRequest(reload, self._exposition.forget).answer)
        app.router.add_get("/api/v1/pipeline", self._pipeline)
        app.router.add_get("/api/v1/timeline", self._timeline)
        app.router.add_get("/api/v1/recording", self._recording)
        app.router.add_get("/api/v1/live", LiveStream(self._feed).answer)
        app.router.add_get("/", self._page)
        app.router.add_get("/static/{name}", self._file)
        self._runner = LimitedRunner(app, limits, refusals, shutdown_timeout=SHUTDOWN_SECONDS)
        self.port = 0
        self._host = "127.0.0.1"

    async def start(self, config: Config) -> None:
        """Listens on the configured address, as the web configuration says.

        Raises:
            ConfigError: The web configuration cannot be used.
            CannotListenError: The address is taken or not ours.
        """
        context = self._guarded(config.web_config_file)
        await self._runner.setup()
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._runner.protocols(context), config.listen_host, config.listen_port
            )
        except OSError as error:
            await self._runner.cleanup()
            address = f"{config.listen_host or '*'}:{config.listen_port}"
            # A name that nobody knows has an error of its own kind, with numbers of its own.
            of_name = isinstance(error, socket.gaierror)
            reason = str(error.strerror) if of_name else os.strerror(error.errno or 0)
            raise CannotListenError(
                f"cannot listen on {address}: {reason.lower()}; "
                "choose another address with --listen ADDRESS:PORT"
            ) from error
        self.port = self._listener.sockets[0].getsockname()[1]
        if (host := config.listen_host) is not None:
            self._host = f"[{host}]" if ":" in host else host

    @property
    def url(self) -> str:
        """Where it can be asked on this machine."""
        return f"{self.scheme}://{self._host}:{self.port}"

    def _guarded(self, path: Path | None) -> ssl.SSLContext | None:
        """Has all answers guarded as the file says; what accepts connections, if that is TLS."""
        if path is None:
            return None
        # Most have none, and need neither bcrypt nor YAML for it.
        from exporter.web_config.file import WebConfigFile  # noqa: PLC0415  # see above
        from exporter.web_config.guard import Guard  # noqa: PLC0415  # see above
        from exporter.web_config.tls import CurrentContext  # noqa: PLC0415  # see above

        self.web_config = file = WebConfigFile(path)
        Guard(file).stand(self._runner.app)
        if file.in_force.context is None:
            return None
        self.scheme = "https"
        return CurrentContext.of(file.context)

    async def close(self) -> None:
        """Answers what is in progress, at most a second, and stops listening."""
        self._feed.close()
        if self._listener is not None:
            self._listener.close()
        await self._runner.cleanup()

    def _beside(self, state: ExporterState) -> ExporterState:
        """What the exporter says about itself, with what HTTP adds."""
        state = replace(state, http_refused=self._refusals.counts)
        if self.web_config is None or self.web_config.last_reload_successful:
            return state
        return replace(state, config=replace(state.config, newest_in_force=False))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        accept = request.headers.get("Accept", "")
        headers = {"Content-Type": content_type_of(accept), "Vary": "Accept, Accept-Encoding"}
        if request.method == "HEAD":  # nothing is shown: nothing is made, no position is kept
            return web.StreamResponse(headers=headers)
        packed = takes_gzip(request.headers.get("Accept-Encoding", ""))
        body = self._exposition.body(accept, packed=packed)
        if packed:
            headers["Content-Encoding"] = "gzip"
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

    async def _timeline(self, request: web.Request) -> web.StreamResponse:
        seconds = _seconds_of(request, MOST_SECONDS)
        if seconds is None:
            return _bad_seconds(MOST_SECONDS)
        cells, until = request.query.get("cells", ""), request.query.get("until", "")
        if cells not in ("", "20") or not re.fullmatch("[0-9]{0,12}", until, re.ASCII):
            return web.Response(
                status=400, text="cells is 20 or left out, until a whole epoch second or left out\n"
            )
        end = int(until) if until else None
        return await self._turns.answer(
            request,
            "application/json; charset=utf-8",
            lambda: self._settled(seconds, end, cells=bool(cells)),
        )

    def _settled(self, seconds: int, end: int | None, *, cells: bool) -> bytes:
        snapshot = self._served.snapshot()
        since = (snapshot.taken_at if end is None else end) - seconds
        found = timeline_json(snapshot, self._served, since, end, cells=cells)
        return json.dumps(found).encode()

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


@web.middleware
async def _plain_errors(request: web.Request, handler: web.Handler) -> web.StreamResponse:  # type: ignore[name-defined]  # aiohttp keeps its handler type private
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPException as error:
        allow = {key: error.headers[key] for key in ("Allow",) if key in error.headers}
        text = f"{error.status} {error.reason}\n"
        return web.Response(status=error.status, text=text, headers=allow)
    except Exception:
        log.exception("a request failed")
        return web.Response(status=500, text="500 Internal Server Error\n")
    return response
