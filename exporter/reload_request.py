"""POST /-/reload: the configuration is read again, and the answer says what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

Reload = Callable[[], Awaitable[str | None]]
"""Reloads; returns why the old configuration stays, or `None`."""


class ReloadRequest:
    """Answers requests to reload, where they are allowed."""

    def __init__(self, reload: Reload | None, after: Callable[[], object]) -> None:
        """`None`: they are not. `after` is called before what came of one is told."""
        self._reload = reload
        self._after = after

    async def answer(self, _request: web.Request) -> web.Response:
        """200 once the newest configuration is in force, else 422 with the mistakes; 403 if off."""
        if self._reload is None:
            return web.Response(
                status=403,
                text="reloading over HTTP is off; --web.enable-reload turns it on, and SIGHUP "
                "reloads in any case\n",
            )
        said = await self._reload()
        self._after()
        if said is None:
            return web.Response(text="reloaded\n")
        return web.Response(status=422, text=f"kept the old configuration:\n{said}\n")
