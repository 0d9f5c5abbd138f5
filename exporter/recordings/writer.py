"""Writes recording format v1: what the exporter saw, in time order, for replay and reports.

In: records as sources and the model know them, and the text of accepted log lines. Out: a file.
Never writes request text, command lines or keys: the text of a line is given by the caller,
already reduced, and of a process title only a scheduler's own is kept.
"""

from __future__ import annotations

import gzip
import heapq
import itertools
import json
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from exporter.recordings.format import FORMAT, LATENESS_SECONDS, VERSION, is_fact
from exporter.records import (
    ActivityLevel,
    GpmWindow,
    GpuIdentity,
    GpuLevels,
    LoadEvent,
    LogLine,
    Record,
    RingSamples,
    ServerFacts,
    Signal,
    StageMap,
    ThroughputReference,
)

HOLD_SECONDS = 3.0
"""How long a line waits for others that belong before it; log and rings lag up to 2 s."""
_MOST_HELD_BYTES = 32 << 20
_DATED = frozenset({"log", "util", "power", "gpm", "load"})
_SCHEDULER_TITLE = "sglang::scheduler"

Entry = tuple[float | None, dict[str, Any]]
"""A line's place in time (`None`: now) and its object."""


class RecordingWriter:
    """One recording being made.

    It grows as `PATH.partial`, is flushed once a second so that even a killed recorder leaves a
    readable file, and takes its name at `close`: a file named PATH is always complete. Something
    at PATH that is no regular file (a pipe, /dev/stdout) is written directly.

    Attributes:
        lines: Lines written or held, without the header.
        left_out: Records that came after lines more than a second younger were written, or that
            hold a number that is none.
    """

    def __init__(
        self,
        path: Path,
        *,
        note: str | None = None,
        host: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Creates the file and writes the header; compressed when the name ends in `.gz`.

        Raises:
            OSError: The file cannot be created.
        """
        self.lines = 0
        self.left_out = 0
        self._clock = clock
        self._path = path
        in_place = path.exists() and not path.is_file()
        self._growing = path if in_place else path.with_name(path.name + ".partial")
        self._raw: IO[bytes] = self._growing.open("wb")
        self._file: IO[bytes] = self._raw
        if path.name.endswith(".gz"):
            self._file = gzip.GzipFile("", "wb", fileobj=self._raw, mtime=0)  # type: ignore[assignment]  # it is a binary file
        self._order = itertools.count()
        self._held: list[tuple[float, int, bytes]] = []
        self._held_bytes = 0
        self._written_to = 0.0
        self._flush_at = 0.0
        self._closed = False
        self._created_at = clock()
        header = {"type": "header", "format": FORMAT, "version": VERSION}
        header |= {"created": self._created_at, "host": platform.node() if host is None else host}
        self._file.write(_line(header | ({"note": note} if note else {})))
        self.advance()

    def write(self, record: Record) -> None:
        """Takes a record; those the format has no place for are passed over.

        Raises:
            OSError: The disk is full or gone.
        """
        for at, values in _encode(record):
            self._hold(at, values)
        self.advance()

    def write_log(self, line: LogLine, text: str) -> None:
        """Takes an accepted log line with the text to keep of it.

        A title that is no scheduler's is a command line, which may hold the API key: left out.

        Raises:
            OSError: The disk is full or gone.
        """
        values: dict[str, Any] = {"type": "log", "t": round(line.logged_at, 6)}
        values["server"] = line.server
        if line.pid is not None:
            values["pid"] = line.pid
        if line.title is not None and line.title.startswith(_SCHEDULER_TITLE):
            values["title"] = line.title.split(maxsplit=1)[0]
        self._hold(line.logged_at, values | {"message": text})
        self.advance()

    def advance(self) -> None:
        """Writes what has waited long enough; call it about once a second when nothing comes.

        Raises:
            OSError: The disk is full or gone.
        """
        now = self._clock()
        self._release(now - HOLD_SECONDS)
        # A clock set back would else stop the flushing for as long.
        if now >= self._flush_at or now < self._flush_at - 1.0:
            self._flush_at = now + 1.0
            self._file.flush()
            self._raw.flush()

    def close(self) -> None:
        """Writes everything held and gives the file its name; may be called twice.

        Raises:
            OSError: The disk is full or gone; what was written stays in `PATH.partial`.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._release(float("inf"))
        finally:
            try:
                self._file.close()
            finally:
                self._raw.close()
        if self._growing != self._path:
            self._growing.replace(self._path)

    def __enter__(self) -> RecordingWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _hold(self, at: float | None, values: dict[str, Any]) -> None:
        if at is None:
            at = self._clock()
        if values["type"] not in _DATED:
            # Facts found by looking back are old news that holds from here on.
            at = max(at, self._created_at, self._written_to)
        try:
            line = _line(values)
        except ValueError:
            line = b""
        if not line or at < self._written_to - LATENESS_SECONDS:
            self.left_out += 1
            return
        heapq.heappush(self._held, (at, next(self._order), line))
        self._held_bytes += len(line)
        self.lines += 1

    def _release(self, until: float) -> None:
        while self._held and (self._held[0][0] <= until or self._held_bytes > _MOST_HELD_BYTES):
            at, _, line = heapq.heappop(self._held)
            self._held_bytes -= len(line)
            self._written_to = max(self._written_to, at)
            self._file.write(line)


def _line(values: dict[str, Any]) -> bytes:
    # ASCII: no character of a message can end the line or fail to encode.
    return json.dumps(values, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _known(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _encode(record: Record) -> Iterator[Entry]:
    """The lines of one record, none for a record the format has no place for."""
    match record:
        case RingSamples():
            yield from _encode_ring(record)
        case GpmWindow():
            yield _encode_gpm(record)
        case ServerFacts():
            yield _encode_server(record)
        case StageMap():
            yield _encode_map(record)
        case GpuIdentity() | GpuLevels() | ThroughputReference() | LoadEvent():
            yield _encode_rare(record)
        case _:
            return


def _encode_ring(record: RingSamples) -> Iterator[Entry]:
    kind, key = ("util", "share") if record.signal is Signal.UTILIZATION else ("power", "watts")
    for taken_at, value in record.samples:
        start = round(taken_at - record.nominal_seconds, 6)
        values = {"type": kind, "gpu": record.gpu, "start": start, "end": round(taken_at, 6)}
        yield taken_at, values | {key: round(value, 6)}


def _encode_gpm(record: GpmWindow) -> Entry:
    ratios = _known(
        sm=record.sm_ratio,
        occupancy=record.occupancy_ratio,
        dram=record.dram_ratio,
        tensor=record.tensor_ratio,
        graphics=record.graphics_ratio,
    )
    values = {"type": "gpm", "gpu": record.gpu, "start": round(record.started_at, 6)}
    values |= {"end": round(record.ended_at, 6)}
    return record.ended_at, values | {key: round(ratio, 6) for key, ratio in ratios.items()}


def _encode_server(record: ServerFacts) -> Entry:
    facts = {name: value for name, value in record.facts.items() if is_fact(name, value)}
    values: dict[str, Any] = {"type": "server", "server": record.server, "facts": facts}
    return record.known_at, values | ({"new_launch": True} if record.new_launch else {})


def _encode_map(record: StageMap) -> Entry:
    stages = [
        _known(
            dp_rank=stage.dp_rank,
            pp_rank=stage.pp_rank,
            tp_rank=stage.tp_rank,
            gpu=stage.gpu,
            uuid=stage.uuid,
            pid=stage.pid,
        )
        for stage in record.stages
    ]
    return record.mapped_at, {"type": "map", "server": record.server, "stages": stages}


def _encode_rare(record: GpuIdentity | GpuLevels | ThroughputReference | LoadEvent) -> Entry:
    match record:
        case GpuIdentity():
            return None, _known(
                type="gpu",
                gpu=record.gpu,
                uuid=record.uuid,
                model=record.model,
                pci_bus_id=record.pci_bus_id,
                power_limit=record.power_limit_watts,
                sms=record.multiprocessors,
            )
        case GpuLevels():
            return None, _known(
                type="levels",
                gpu=record.gpu,
                idle=_level(record.idle),
                waiting=_level(record.waiting),
                working=_level(record.working),
            )
        case ThroughputReference():
            return None, {
                "type": "reference",
                "concurrency": record.concurrency,
                "output_tokens_per_second": record.output_tokens_per_second,
            }
        case LoadEvent():
            return record.happened_at, _known(
                type="load",
                t=record.happened_at,
                event=record.phase.value,
                concurrency=record.concurrency,
                output_tokens=record.output_tokens,
                seconds=record.seconds,
                errors=record.errors,
            )


def _level(level: ActivityLevel | None) -> dict[str, Any] | None:
    if level is None:
        return None
    return _known(watts=level.watts, sm=level.sm_ratio, dram=level.dram_ratio)
