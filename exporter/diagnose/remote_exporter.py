"""One running exporter over HTTP: what it knows now, and recordings of what it saw of late.

Never follows a redirect, uses no proxy and no cookie, verifies certificates, reads bounded bodies.
No error repeats a password, or what the other side sent.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import aiohttp

from exporter import __version__

_MOST_JSON_BYTES = 8 << 20
_MOST_FILE_BYTES = 128 << 20
_CONNECT_SECONDS = 5.0
_JSON_SECONDS = 10.0
_FILE_SECONDS = 60.0
PASSWORD_VARIABLE = "SGLANG_PIPELINE_EXPORTER_PASSWORD"  # noqa: S105  # a name, not a password
"""Of the user in the address: a command line can be seen by others."""
_TRIES = 4
"""Somebody else may be downloading."""
_RETRY_SECONDS = 3.0
_HEADERS = {"User-Agent": f"sglang-pipeline-exporter/{__version__}"}


class ExporterError(Exception):
    """An exporter cannot be asked: what was asked, what happened, what to do."""


class NoSuchPathError(ExporterError):
    """The server there does not know the path."""


class _BusyError(ExporterError):
    """Others are answered first."""


class RemoteExporter:
    """An exporter at an address, while it is used as a context manager.

    Attributes:
        name: Its address as it may be shown: without user and password.
        ahead_seconds: How far its clock is ahead of ours; known once it has answered.
    """

    def __init__(
        self,
        address: str,
        ca_file: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Reads the address; `http://user:password@host` asks with basic authentication.

        Args:
            address: Where it is; a user without a password has that of the environment.
            ca_file: Who issued its certificate, as PEM; `None`: whom this machine trusts.
            environment: May hold `PASSWORD_VARIABLE`.

        Raises:
            ExporterError: It is no address, or no such file.
        """
        password = (environment or {}).get(PASSWORD_VARIABLE, "")
        self.name, self._credentials = _parted(address, password)
        self._trust = _trust(ca_file)
        self.ahead_seconds = 0.0
        self._doubt_seconds = math.inf
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._trust),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS | self._credentials,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    def now(self) -> float:
        """The time of its clock, epoch seconds."""
        return time.time() + self.ahead_seconds

    async def check(self, folder: Path) -> None:
        """Asks once for all that will be needed; what comes is put into `folder`.

        Raises:
            ExporterError: It is no exporter, one that keeps no recordings, or not reachable.
        """
        try:
            await self.pipeline()
        except NoSuchPathError:
            raise self._no_exporter() from None
        try:
            await self.download(1, folder / "check.jsonl.gz")
        except NoSuchPathError:
            raise ExporterError(
                f"cannot watch through the exporter at {self.name}: it is older than this command "
                "and keeps no recordings; update it, or run diagnose --attach on its host"
            ) from None

    async def pipeline(self) -> Mapping[str, Any]:
        """What it knows now, as /api/v1/pipeline says; compares the clocks meanwhile.

        Raises:
            ExporterError: No usable answer.
        """
        asked_at = time.time()
        body = await self._get("/api/v1/pipeline", _MOST_JSON_BYTES, _JSON_SECONDS)
        answered_at = time.time()
        # Not chained: the decoder's errors carry the text they failed on.
        try:
            answer: Any = await asyncio.to_thread(json.loads, body)
        except (ValueError, RecursionError):
            raise self._no_exporter() from None
        if not isinstance(answer, dict) or not isinstance(answer.get("servers"), list):
            raise self._no_exporter()
        taken_at = answer.get("taken_at")
        if not isinstance(taken_at, float | int):
            raise self._no_exporter()
        doubt_seconds = abs(answered_at - asked_at)
        if doubt_seconds <= self._doubt_seconds:
            self._doubt_seconds = doubt_seconds
            self.ahead_seconds = taken_at - (asked_at + answered_at) / 2
        return answer

    async def download(self, seconds: int, path: Path) -> None:
        """Writes the recording of its newest seconds to a file.

        Raises:
            ExporterError: No usable answer.
            OSError: The file cannot be written.
        """
        for left in reversed(range(_TRIES)):
            try:
                body = await self._get(
                    f"/api/v1/recording?seconds={seconds}", _MOST_FILE_BYTES, _FILE_SECONDS
                )
            except _BusyError:
                if left == 0:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                await asyncio.to_thread(path.write_bytes, body)
                return

    async def complaints(self) -> list[str]:
        """What its sources complain of, as /-/ready says; empty where it does not answer."""
        with contextlib.suppress(ExporterError):
            text = (await self._get("/-/ready", 1 << 16, _JSON_SECONDS, (200, 503))).decode(
                errors="replace"
            )
            return [line for line in text.split("\n")[1:] if line and line.isprintable()]
        return []

    async def _get(
        self, path: str, most_bytes: int, seconds: float, wanted: tuple[int, ...] = (200,)
    ) -> bytes:
        async with self._asked(path, seconds) as response:
            if response.status not in wanted:
                raise self._refusal(response.status)
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > most_bytes:
                    raise self._no_exporter()
            return bytes(body)

    @contextlib.asynccontextmanager
    async def _asked(self, path: str, seconds: float) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("use the exporter as a context manager")
        timeout = aiohttp.ClientTimeout(total=seconds, connect=_CONNECT_SECONDS)
        try:
            async with self._session.get(
                self.name + path, allow_redirects=False, timeout=timeout
            ) as response:
                yield response
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            # Not chained: aiohttp's errors may quote a malformed answer.
            raise ExporterError(
                f"cannot ask the exporter at {self.name}: {_meaning(error, self.name)}"
            ) from None

    def _refusal(self, status: int) -> ExporterError:
        said = f"cannot ask the exporter at {self.name}: it answered {status}"
        if status in (401, 403):
            remedy = (
                "give its user in the address, https://USER@HOST:PORT, and the password in the "
                f"environment variable {PASSWORD_VARIABLE}"
                if not self._credentials
                else "are user and password right?"
            )
            return ExporterError(f"{said}; {remedy}")
        if status == 404:
            return NoSuchPathError(said)
        if status == 503:
            return _BusyError(f"{said}; others are downloading recordings, try again later")
        if 300 <= status < 400:
            return ExporterError(f"{said}, a redirect; give the address it leads to")
        return ExporterError(f"{said}; its log may say why")

    def _no_exporter(self) -> ExporterError:
        return ExporterError(
            f"cannot watch through {self.name}: no exporter answers there; give the base address "
            "of one, like http://gpu-host:10810"
        )


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        problem = "it holds no certificate in PEM form"
    except OSError as error:
        problem = (error.strerror or "it cannot be read").lower()
    raise ExporterError(f"cannot use --exporter-ca {ca_file}: {problem}")


def _parted(address: str, password: str) -> tuple[str, dict[str, str]]:
    """The address without user and password, and the header that these make."""
    try:
        parts = urlsplit(address)
        is_good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ExporterError(
            "cannot use the address of --exporter: it is like http://gpu-host:10810, or "
            "http://USER:PASSWORD@gpu-host:10810"
        )
    name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    if parts.username is None:
        return name, {}
    both = f"{unquote(parts.username)}:{unquote(parts.password or '') or password}"
    return name, {"Authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}


_MEANINGS: tuple[tuple[type[Exception], str], ...] = (
    (aiohttp.ClientSSLError, "no TLS there; should the address begin with http://?"),
    (aiohttp.ClientConnectorDNSError, "its host name cannot be looked up; is the address right?"),
    (aiohttp.ConnectionTimeoutError, "no connection in time; is the address right?"),
    (TimeoutError, "no whole answer in time; is it hung?"),
    (aiohttp.InvalidURL, "the address is none; it is like http://gpu-host:10810"),
    (aiohttp.ClientResponseError, "what answers there is no exporter; is the port right?"),
)


def _meaning(error: Exception, address: str) -> str:
    if isinstance(getattr(error, "os_error", None), ConnectionRefusedError):
        return "connection refused; is it running, is the port right (10810 unless configured)?"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is refused{_why(error)}; --exporter-ca FILE names who issued it"
    for kind, meaning in _MEANINGS:
        if isinstance(error, kind):
            return meaning
    broke = "the connection broke; is it running"
    if address.startswith("https:"):
        return f"{broke}, does it want a client's certificate (this command has none)?"
    return f"{broke}, should the address begin with https://?"


def _why(error: aiohttp.ClientConnectorCertificateError) -> str:
    """OpenSSL's words, which repeat nothing but the host that was asked for."""
    refused = error.certificate_error
    return (
        f" ({refused.verify_message})" if isinstance(refused, ssl.SSLCertVerificationError) else ""
    )
