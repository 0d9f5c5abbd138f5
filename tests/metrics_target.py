"""A scrape target on loopback that says what it is given, newly rendered at every scrape."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from prometheus_client import CollectorRegistry, Histogram, generate_latest

MODEL = "demo-moe-590b"
"""The name by which the demo's server serves its model."""


class MetricsTarget:
    """Serves an exposition at any path."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = render()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.address = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class SglangMetrics:
    """SGLang's own /metrics as far as the dashboards read it; each scrape brings 20 requests.

    Names, labels and kinds are those of sglang 0.5.23.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._first = self._histogram("time_to_first_token", 0.1)
        self._between = self._histogram("inter_token_latency", 0.01)

    def render(self) -> bytes:
        """The exposition, after 20 more requests."""
        for at in range(20):
            self._first.observe(0.15 + 0.05 * at)
            self._between.observe(0.015 + 0.005 * at)
        return generate_latest(self._registry)

    def _histogram(self, name: str, least: float) -> Histogram:
        labels = ("model_name", "engine_type")
        buckets = [least * 2**at for at in range(6)]
        family = Histogram(
            f"sglang:{name}_seconds", name, labels, buckets=buckets, registry=self._registry
        )
        return family.labels(MODEL, "unified")
