"""Stands before every answer: the rate, the password, the headers of the web configuration."""

from __future__ import annotations

import asyncio
import logging
import time

from aiohttp import web

from exporter.web_config.file import WebConfigFile, WebRules
from exporter.web_config.passwords import Passwords, TooManyChecksError, credentials_of

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How often the file is looked at though nobody asks: a stream may outlive its user no longer."""
_CHALLENGE = 'Basic realm="sglang-pipeline-exporter", charset="UTF-8"'


class Guard:
    """Lets requests pass as the file says at their instant."""

    def __init__(self, file: WebConfigFile) -> None:
        self._file = file
        self._passwords = file.in_force.passwords
        self._answering: dict[asyncio.Transport | None, tuple[bytes, bytes | None]] = {}
        """To whom, and under which hash, by connection; each has one request at a time."""
        self._looking: asyncio.Task[None] | None = None

    def stand(self, app: web.Application) -> None:
        """Stands before all that `app` answers."""
        app.middlewares.append(self._admit)
        app.on_response_prepare.append(self._add_headers)
        app.on_startup.append(self._start)
        app.on_cleanup.append(self._stop)

    async def _start(self, _app: web.Application) -> None:
        self._looking = asyncio.create_task(self._look(), name="web configuration")

    async def _stop(self, _app: web.Application) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._file.close()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self._rules()
            except Exception:  # a bug here must not end the looking
                log.exception("the web configuration could not be looked at")

    def _rules(self) -> WebRules:
        rules = self._file.rules()
        if rules.passwords is not self._passwords:
            self._passwords = rules.passwords
            if rules.passwords is not None:
                self._let_go(rules.passwords)
        return rules

    def _let_go(self, passwords: Passwords) -> None:
        """Ends what is being answered to users that are gone, or have another password."""
        for transport, (user, hashed) in tuple(self._answering.items()):
            is_good = hashed is not None and passwords.hash_of(user) == hashed
            if not is_good and transport is not None:
                transport.abort()

    @web.middleware
    async def _admit(self, request: web.Request, handler: web.Handler) -> web.StreamResponse:  # type: ignore[name-defined]  # aiohttp keeps its handler type private
        rules = self._rules()
        if rules.bucket is not None and not rules.bucket.take(time.monotonic()):
            return _later("requests come faster than the rate limit allows")
        credentials = credentials_of(request.headers.get("Authorization", ""))
        while (passwords := rules.passwords) is not None:
            try:
                if credentials is None or not await passwords.admits(
                    *credentials, request.remote or ""
                ):
                    return _refusal()
            except TooManyChecksError:
                return _later("too many passwords are being checked")
            rules = self._rules()
            if passwords is rules.passwords:  # the users are still those of the check
                break
        user = credentials[0] if credentials and passwords else b""
        connection = request.transport
        self._answering[connection] = (user, passwords.hash_of(user) if passwords else None)
        try:
            response: web.StreamResponse = await handler(request)
            return response
        finally:
            self._answering.pop(connection, None)

    async def _add_headers(self, _request: web.Request, response: web.StreamResponse) -> None:
        for name, value in self._file.in_force.headers.items():
            if name == "Content-Security-Policy":
                response.headers.add(name, value)  # beside the page's own: a browser obeys both
            else:
                response.headers[name] = value


def _refusal() -> web.Response:
    return web.Response(
        status=401, text="401 Unauthorized\n", headers={"WWW-Authenticate": _CHALLENGE}
    )


def _later(why: str) -> web.Response:
    return web.Response(status=429, text=f"{why}; try again later\n", headers={"Retry-After": "1"})
