"""Recording format v1, written: a record → the objects of its lines and their places in time.

Knows the format only; never opens a file. Never writes request text, command lines or keys: the
text of a line is given by the caller, already reduced, and of a process title only a scheduler's
own is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from exporter.recordings.facts import is_fact
from exporter.recordings.format import FORMAT, VERSION
from exporter.recordings.gpu_readings import encode_gauges, encode_state, encode_xid
from exporter.records import (
    ActivityLevel,
    GpmWindow,
    GpuGauges,
    GpuIdentity,
    GpuLevels,
    GpuState,
    LoadEvent,
    LogLine,
    Record,
    RingSamples,
    ServerFacts,
    Signal,
    StageMap,
    ThroughputReference,
    XidError,
)

_SCHEDULER_TITLE = "sglang::scheduler"

Entry = tuple[float | None, dict[str, Any]]
"""A line's place in time (`None`: now) and its object."""


def line_of(values: dict[str, Any]) -> bytes:
    """One line of a recording; raises `ValueError` for a number that is none."""
    # ASCII: no character of a message can end the line or fail to encode.
    return json.dumps(values, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def _known(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def encode_header(created_at: float, host: str, note: str | None) -> bytes:
    """The first line of a recording."""
    values = {"type": "header", "format": FORMAT, "version": VERSION}
    values |= {"created": created_at, "host": host} | ({"note": note} if note else {})
    return line_of(values)


@lru_cache(maxsize=256)
def kept_title(title: str | None) -> str | None:
    """What may be kept of a process title.

    One that is no scheduler's is a command line, which may hold the API key: left out.
    """
    if title is None or not title.startswith(_SCHEDULER_TITLE):
        return None
    return title.split(maxsplit=1)[0]


def encode_log(line: LogLine, text: str) -> Entry:
    """The line of an accepted log line, with the text to keep of it."""
    values: dict[str, Any] = {"type": "log", "t": round(line.logged_at, 6), "server": line.server}
    if line.pid is not None:
        values["pid"] = line.pid
    if (title := kept_title(line.title)) is not None:
        values["title"] = title
    return line.logged_at, values | {"message": text}


def encode(record: Record) -> Iterator[Entry]:
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
        case GpuGauges():
            yield record.read_at, encode_gauges(record)
        case GpuState():
            yield record.changed_at, encode_state(record)
        case XidError():
            yield record.happened_at, encode_xid(record)
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
