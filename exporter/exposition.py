"""A look at the exporter as the text of /metrics, shared by scrapes when too many come.

A look costs about 6 ms for 8 GPUs. However many ask, ten are made in a second, after a few at once,
and each saves the reading positions that belong to it.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector

from exporter.collector import ExporterState, SnapshotCollector
from exporter.exposition_text import text_of
from exporter.snapshot import Snapshot

LOOKS_PER_SECOND = 10.0
"""Beyond that scrapes share the last one, 0.1 s old at most; gauges change once a second."""
LOOKS_AT_ONCE = 10.0
"""After a pause: who asks again and again, but not for long, sees each time what is new."""
GZIP_LEVEL = 1
"""Fast: text this repetitive shrinks to a tenth at any level."""
_VERSIONS = ("0.0.1", "0.0.4", "1.0.0")
_VERSION = re.compile(r";\s*version=([^;]*)")


class Scraped(Protocol):
    """What a scrape needs of `ingest.Ingest`."""

    def snapshot(self) -> Snapshot:
        """The model at this instant."""

    def state(self, snapshot: Snapshot) -> ExporterState:
        """The exporter itself, beside that snapshot."""

    def scraped(self) -> None:
        """Keeps the reading positions behind the newest snapshot."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Everything to tell of one instant. The values are copies: sources go on counting."""

    families: tuple[Metric, ...]
    bodies: dict[tuple[str, bool], bytes] = field(default_factory=dict)
    """What was asked for so far, by content type and whether it is packed."""

    def collect(self) -> Iterator[Metric]:
        """As an encoder wants it."""
        return iter(self.families)


class Exposition:
    """Answers scrapes."""

    def __init__(
        self,
        served: Scraped,
        beside: Callable[[ExporterState], ExporterState],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`beside` adds what is known of HTTP."""
        self._served = served
        self._beside = beside
        self._clock = clock
        self._process = ProcessCollector(registry=None)
        self._look: _Look | None = None
        self._credit, self._credited_at = LOOKS_AT_ONCE, clock()

    def body(self, accept: str, *, packed: bool) -> bytes:
        """The metrics in the format `accept` asks for.

        Once this returns the reading positions behind what it returned are saved.
        """
        encode, content_type = _encoder(accept)
        look, is_new = self._look, False
        if self._may_look() or look is None:
            look, is_new = self._take(), True
        body = look.bodies.get((content_type, packed))
        if body is None:
            body = encode(look)
            if packed:
                body = gzip.compress(body, GZIP_LEVEL, mtime=0)
            look.bodies[content_type, packed] = body
        if is_new:
            # Before the answer leaves: a scrape that Prometheus has must not be read again.
            self._served.scraped()
            self._look = look
            self._credit -= 1
        return body

    def forget(self) -> None:
        """What was seen so far is shared no more: who caused a change wants to see it."""
        self._look = None

    def _may_look(self) -> bool:
        """Whether one more may be made now."""
        now = self._clock()
        earned = (now - self._credited_at) * LOOKS_PER_SECOND
        self._credit, self._credited_at = min(LOOKS_AT_ONCE, self._credit + earned), now
        return self._credit >= 1

    def _take(self) -> _Look:
        snapshot = self._served.snapshot()
        state = self._beside(self._served.state(snapshot))
        return _Look(tuple(SnapshotCollector(snapshot, state, self._process).collect()))


def content_type_of(accept: str) -> str:
    """What a scrape that accepts this would get."""
    return _encoder(accept)[1]


def _encoder(accept: str) -> tuple[Callable[[_Look], bytes], str]:
    encode, content_type = choose_encoder(_known_formats(accept))
    if isinstance(encode, partial) and encode.keywords.get("escaping") == "dots":
        return encode, content_type  # doubles each underscore of a name
    # All others leave names like ours alone, but "values" sends "U__" before each of them.
    open_metrics = content_type.startswith("application/openmetrics-text")
    return lambda look: text_of(look.families, open_metrics=open_metrics), content_type


def _known_formats(accept: str) -> str:
    """What of an `Accept` has a version that exists: the encoder's own look stumbles over others.

    `version=x` raises TypeError in prometheus-client 0.26, and `version=9.1` is promised.
    """
    entries = accept.split(",")
    return ",".join(
        entry
        for entry in entries
        if (found := _VERSION.search(entry)) is None or found[1].strip() in _VERSIONS
    )


def takes_gzip(accept_encoding: str) -> bool:
    """Whether gzip is named and not refused by a quality of 0 (RFC 9110, 12.5.3)."""
    for entry in accept_encoding.lower().split(","):
        coding, _, quality = entry.partition(";")
        if coding.strip() in ("gzip", "x-gzip"):
            return not re.fullmatch(r"\s*q\s*=\s*0(\.0{0,3})?\s*", quality)
    return False
