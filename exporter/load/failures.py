"""Why a request of ours, or a whole load, came to nothing.

No failure repeats a byte of what a server sent: it is counted by kind, and each kind has a meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http import HTTPStatus
from types import MappingProxyType

import aiohttp

MOST_RETRY_AFTER_SECONDS = 60.0
"""A server that asks for a longer pause is asked again after this long."""


class FailureKind(StrEnum):
    """How one request failed."""

    CONNECTION_REFUSED = "connection_refused"
    UNREACHABLE = "unreachable"
    NOT_ALLOWED = "not_allowed"
    OVERLOADED = "overloaded"
    REJECTED = "rejected"
    SERVER_ERROR = "server_error"
    TIME_OUT = "time_out"
    BROKEN_OFF = "broken_off"
    ABORTED = "aborted"
    UNUSABLE = "unusable"


MEANINGS: Mapping[FailureKind, str] = MappingProxyType(
    {
        FailureKind.CONNECTION_REFUSED: "connection refused; is the server up?",
        FailureKind.UNREACHABLE: "no connection in time, or no name, route or TLS to the server",
        FailureKind.NOT_ALLOWED: "the server wants another API key (401 or 403)",
        FailureKind.OVERLOADED: "the server turned requests away (429 or 503)",
        FailureKind.REJECTED: "the server refused the request itself; is prompt plus output longer "
        "than its context?",
        FailureKind.SERVER_ERROR: "the server failed (5xx); its log may say why",
        FailureKind.TIME_OUT: "no whole answer in time; is the server hung?",
        FailureKind.BROKEN_OFF: "the answer broke off in the middle; did the server die?",
        FailureKind.ABORTED: "the server aborted the request",
        FailureKind.UNUSABLE: "the answer is no stream of tokens; is this an SGLang server?",
    }
)
"""What each kind means to the person who looks at it."""


class LoadError(Exception):
    """A load cannot be driven; the message says what was tried, what happened and the remedy."""


class RequestFailedError(Exception):
    """One request came to nothing.

    Attributes:
        kind: How.
        retry_after_seconds: The pause the server asked for; `None` if it named none.
    """

    def __init__(self, kind: FailureKind, retry_after_seconds: float | None = None) -> None:
        """Takes note of the kind and of the pause that the server asked for."""
        super().__init__(MEANINGS[kind])
        self.kind = kind
        self.retry_after_seconds = retry_after_seconds


def kind_of_status(status: int) -> FailureKind:
    """What an HTTP status other than 200 means, in a head or in an error inside a stream."""
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return FailureKind.NOT_ALLOWED
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        return FailureKind.OVERLOADED
    return FailureKind.SERVER_ERROR if status >= 500 else FailureKind.REJECTED


def retry_after_seconds(header: str | None, now: float) -> float | None:
    """The pause a `Retry-After` header asks for, at most a minute; `None` where it names none.

    `now` is the wall clock, for the form of the header that holds a date.
    """
    if header is None or len(header) > 40:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), MOST_RETRY_AFTER_SECONDS)
    try:
        date = parsedate_to_datetime(text)
        seconds = (date - datetime.fromtimestamp(now, UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), MOST_RETRY_AFTER_SECONDS)


_UNREACHABLE = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientSSLError,
    aiohttp.ConnectionTimeoutError,
)


def kind_of_error(error: Exception) -> FailureKind:
    """What an exception of the HTTP client means."""
    if isinstance(getattr(error, "os_error", None), ConnectionRefusedError):
        return FailureKind.CONNECTION_REFUSED
    if isinstance(error, _UNREACHABLE):
        return FailureKind.UNREACHABLE
    if isinstance(error, TimeoutError):
        return FailureKind.TIME_OUT
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ClientConnectionError | OSError):
        return FailureKind.BROKEN_OFF
    return FailureKind.UNUSABLE
