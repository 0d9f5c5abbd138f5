"""Scrapes as Prometheus does: one connection kept open, gzip accepted; for us and for peers."""

from __future__ import annotations

import http.client
import time
from collections.abc import Sequence

from tests.running import PROMETHEUS_ACCEPTS


class Scraper:
    """One client of one `/metrics` on the loopback."""

    def __init__(self, port: int, *, encoding: str = "gzip") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._headers = {"Accept": PROMETHEUS_ACCEPTS, "Accept-Encoding": encoding}

    def scrape(self) -> tuple[float, bytes]:
        """Seconds from the request to the last byte of the answer, and the answer as sent.

        Raises:
            RuntimeError: The status was not 200.
        """
        began = time.perf_counter()
        self._connection.request("GET", "/metrics", headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        seconds = time.perf_counter() - began
        if answer.status != http.client.OK:
            raise RuntimeError(f"a scrape was answered with {answer.status}")
        return seconds, body

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
