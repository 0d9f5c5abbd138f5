"""aiohttp's server within the limits."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import cast

from aiohttp import web

from exporter.web_limits.connections import Connection, Connections, Limits
from exporter.web_limits.refusals import Refusals, ServerLog
from exporter.web_limits.requests import bounded

KEEP_ALIVE_SECONDS = 130.0
"""Longer than the longest useful scrape interval, 2 minutes: a Prometheus keeps its connection."""


class LimitedRunner(web.AppRunner):
    """A runner for bounded connections and bounded requests."""

    def __init__(
        self, app: web.Application, limits: Limits, refusals: Refusals, *, shutdown_timeout: float
    ) -> None:
        super().__init__(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=shutdown_timeout,
            logger=ServerLog(refusals),
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            lingering_time=0,  # a body that nobody reads is not waited for
        )
        self._refusals = refusals
        self._connections = Connections(limits, refusals)

    async def setup(self) -> None:
        """Makes the server."""
        await super().setup()
        handlers = cast(web.Server, self.server)
        handlers.request_handler = bounded(handlers.request_handler, self._refusals)

    def protocols(self, tls: ssl.SSLContext | None) -> Callable[[], Connection]:
        """What makes the protocol of each new connection, for the loop's `create_server`.

        That gets no TLS of its own: it would tell of a client only after the handshake.
        """
        handlers = cast(web.Server, self.server)
        return lambda: Connection(self._connections, handlers(), tls)
