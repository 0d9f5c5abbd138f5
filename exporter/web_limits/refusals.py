"""What was refused to clients, counted by reason."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum

from aiohttp.http import HttpProcessingError


class Refusal(StrEnum):
    """Why a connection was ended or a request not served."""

    BUSY = "busy"
    CONNECTIONS = "connections"
    MALFORMED = "malformed"
    SLOW_READER = "slow_reader"
    SLOW_REQUEST = "slow_request"
    TOO_LARGE = "too_large"


class Refusals:
    """Connections and requests refused so far; every reason is there from the start."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter(dict.fromkeys(Refusal, 0))

    @property
    def counts(self) -> Mapping[str, int]:
        """By reason, as it is now."""
        return dict(self._counts)

    def count(self, reason: Refusal) -> None:
        """One more."""
        self._counts[reason] += 1


class ServerLog(logging.Logger):
    """What aiohttp's server says: mistakes of clients are counted, everything else is written."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__(f"{__name__}.server", logging.DEBUG)
        self.parent = logging.getLogger(__name__)
        self._refusals = refusals

    def handle(self, record: logging.LogRecord) -> None:
        """Takes one saying."""
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            self._refusals.count(Refusal.MALFORMED)
        elif record.levelno >= logging.WARNING:
            super().handle(record)
