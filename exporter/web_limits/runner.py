"""aiohttp's server within the limits."""

from __future__ import annotations

import ssl
from typing import cast

from aiohttp import web

from exporter.web_limits.connections import Connection, Connections, Limits
from exporter.web_limits.refusals import Refusals, ServerLog
from exporter.web_limits.requests import bounded

KEEP_ALIVE_SECONDS = 130.0
"""Longer than the longest useful scrape interval, 2 minutes: a Prometheus keeps its connection."""


class LimitedRunner(web.AppRunner):
    """A runner whose sites make connections that are bounded, and get requests that are.

    Attributes:
        tls: For connections from now on; `None`: plain HTTP. Sites get none of their own: the
            server would know of a client only after its handshake.
    """

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
        self.tls: ssl.SSLContext | None = None
        self._refusals = refusals
        self._connections = Connections(limits, refusals)

    async def setup(self) -> None:
        """Makes the server; sites can be added afterwards."""
        await super().setup()
        handlers = cast(web.Server, super().server)
        handlers.request_handler = bounded(handlers.request_handler, self._refusals)

    @property
    def server(self) -> web.Server | None:
        """What a site calls for the protocol of a new connection."""
        handlers = super().server
        if handlers is None:
            return None
        return cast(web.Server, lambda: Connection(self._connections, handlers(), self.tls))
