"""One HTTP question to an SGLang server: the body of the answer, or why there is none.

Never follows a redirect, never uses a proxy or a cookie, verifies certificates, reads a bounded
body and keeps no connection. No error repeats what the server sent.
"""

from __future__ import annotations

from http import HTTPStatus

import aiohttp

from exporter import __version__

MOST_BYTES = 4 << 20
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 15.0
"""SGLang asks its scheduler first, which answers between two batches."""

_HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": f"sglang-pipeline-exporter/{__version__}",
}
_NO_SUCH_PATH = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE}
_NOT_ALLOWED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
_PROXY_WITHOUT_SERVER = {
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}


class NoAnswerError(Exception):
    """No usable answer; the message says what was asked, what happened and the remedy."""


class NotReachedError(NoAnswerError):
    """The server did not see the question, as far as one can know; it may be asked again."""


class NotAllowedError(NoAnswerError):
    """The server wants another token; asking again with the same one is useless."""


class NoSuchPathError(NoAnswerError):
    """The server does not know the path."""


class UnusableAnswerError(NoAnswerError):
    """The server saw the question, but its answer is of no use, late or broken off."""


async def fetch(
    url: str, token: str | None, *, seconds: float = ANSWER_SECONDS, post: bytes | None = None
) -> bytes:
    """The body of a GET, or of a POST of this JSON, at most 4 MiB; `token` is the bearer token.

    Raises:
        NotReachedError: Nobody is there.
        NotAllowedError: 401 or 403.
        NoSuchPathError: 404, 405 or 410.
        UnusableAnswerError: Anything else that is no whole answer in time.
    """
    headers = _HEADERS if token is None else _HEADERS | {"Authorization": f"Bearer {token}"}
    if post is not None:
        headers = headers | {"Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=seconds, connect=min(CONNECT_SECONDS, seconds))
    try:
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=timeout,
            ) as session,
            session.request(
                "GET" if post is None else "POST",
                url,
                data=post,
                headers=headers,
                allow_redirects=False,
            ) as response,
        ):
            _check_head(url, response, token)
            return await _bounded_body(url, response)
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
        # Not chained: aiohttp's errors may quote a malformed answer.
        raise _no_answer(url, error) from None


def _check_head(url: str, response: aiohttp.ClientResponse, token: str | None) -> None:
    status = response.status
    said = f"cannot ask {url}: the server answered {status}"
    if status in _NOT_ALLOWED:
        remedy = "give its API key in `token_file`" if token is None else "is `token_file` right?"
        raise NotAllowedError(f"{said}; {remedy}")
    if status in _NO_SUCH_PATH:
        raise NoSuchPathError(
            f"{said}; `url` must be the base address of the first node's SGLang server"
        )
    if status in _PROXY_WITHOUT_SERVER:
        raise NotReachedError(f"{said}; is the server behind it up?")
    if 300 <= status < 400:
        raise UnusableAnswerError(f"{said}, a redirect; give the address it leads to as `url`")
    if status != HTTPStatus.OK:
        raise UnusableAnswerError(f"{said}; its log may say why")
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise UnusableAnswerError(f"{said} in an encoding not asked for; is `url` right?")


async def _bounded_body(url: str, response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            raise UnusableAnswerError(
                f"cannot use the answer of {url}: it is larger than {MOST_BYTES} bytes; "
                "is `url` that of an SGLang server?"
            )
    return bytes(body)


_BROKEN: tuple[tuple[type[Exception], type[NoAnswerError], str], ...] = (
    (
        aiohttp.ClientConnectorCertificateError,
        NotReachedError,
        "its certificate cannot be verified; have this machine trust its issuer",
    ),
    (aiohttp.ClientSSLError, NotReachedError, "no TLS there; should `url` begin with http://?"),
    (
        aiohttp.ClientConnectorDNSError,
        NotReachedError,
        "its host name cannot be looked up; is `url` right?",
    ),
    (aiohttp.ConnectionTimeoutError, NotReachedError, "no connection in time; is `url` right?"),
    (TimeoutError, UnusableAnswerError, "no whole answer in time; is the server hung?"),
    (
        aiohttp.ClientConnectionError,
        NotReachedError,
        "the connection broke; is the server up, is `url` right?",
    ),
)
"""What a failure means, the special ones first."""


def _no_answer(url: str, error: Exception) -> NoAnswerError:
    if isinstance(getattr(error, "os_error", None), ConnectionRefusedError):
        return NotReachedError(
            f"cannot ask {url}: connection refused; is the server up, is `url` right?"
        )
    for kind, outcome, meaning in _BROKEN:
        if isinstance(error, kind):
            return outcome(f"cannot ask {url}: {meaning}")
    return UnusableAnswerError(
        f"cannot ask {url}: the answer is broken; is `url` that of an SGLang server?"
    )
