"""Recording format v1, read: the object of one line to a record and its place in time.

Knows the format only; never opens a file, keeps no state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from exporter.recordings.facts import known_facts
from exporter.recordings.fields import (
    EXACT_INTEGER,
    LAST_INSTANT,
    MOST_WATTS,
    NAME_LENGTH,
    BadLineError,
    Fields,
)
from exporter.recordings.gpu_readings import decode_gauges, decode_state, decode_xid
from exporter.records import (
    ActivityLevel,
    GpmWindow,
    GpuIdentity,
    GpuLevels,
    LoadEvent,
    LoadPhase,
    LogLine,
    Record,
    RingSamples,
    ServerFacts,
    Signal,
    StageGpu,
    StageMap,
    ThroughputReference,
)

FORMAT = "sglang-pipeline-recording"
VERSION = 1
LATENESS_SECONDS = 1.0
"""How far a line may lie behind the newest one and still be taken."""

_LONGEST_WINDOW_SECONDS = 300.0
_MOST_STAGES = 64
_MOST_RANKS = 4096
_TOKENS_PER_SECOND = (1e-3, 1e9)
"""No server that answers is slower or faster."""
_MESSAGE_LENGTH = 1 << 20


class TimedRecord(NamedTuple):
    """A record and its place in time; `None`: where it stands in the file is its place."""

    at: float | None
    record: Record
    faults: tuple[str, ...] = ()
    """What is wrong with values of the line that were left out, without any of its text."""


def check_header(values: object) -> float | None:
    """Accepts the first object of a recording; returns when it was created, if it says so.

    Raises:
        BadLineError: This is no recording, or one of a version that cannot be read here.
    """
    if not isinstance(values, dict) or values.get("type") != "header":
        raise BadLineError("the first line is no header")
    if values.get("format") != FORMAT:
        raise BadLineError(f"the header names another format than {FORMAT}")
    if values.get("version") != VERSION or isinstance(values.get("version"), bool):
        raise BadLineError(f"the header names another version than {VERSION}")
    try:
        return Fields(values).instant("created")
    except BadLineError:
        return None


def decode(values: object) -> TimedRecord | None:
    """The record of one object; `None` for a type this version does not know.

    `ServerFacts.known_at` and `StageMap.mapped_at` are NaN until `stamped`: the format gives
    them no time but their place in the file.

    Raises:
        BadLineError: A known type whose values cannot be true.
    """
    if not isinstance(values, dict):
        raise BadLineError("not an object")
    kind = values.get("type")
    if not isinstance(kind, str):
        raise BadLineError("`type` is missing")
    decoder = _DECODERS.get(kind)
    return decoder(Fields(values)) if decoder else None


def stamped(record: Record, at: float) -> Record:
    """The record with the time of its place in the file, where it has none of its own."""
    if isinstance(record, ServerFacts):
        return ServerFacts(record.server, at, record.facts, record.origin, record.new_launch)
    if isinstance(record, StageMap):
        return StageMap(record.server, at, record.stages, record.origin)
    return record


def _server_name(fields: Fields) -> str:
    return fields.label("server", NAME_LENGTH)


def _pid(fields: Fields) -> int | None:
    return fields.maybe(Fields.whole, "pid", 1, 2**31 - 1)


def _window(fields: Fields) -> tuple[float, float]:
    started_at, ended_at = fields.instant("start"), fields.instant("end")
    if not 0.0 < ended_at - started_at <= _LONGEST_WINDOW_SECONDS:
        raise BadLineError(
            f"`end` is not after `start`, or by more than {_LONGEST_WINDOW_SECONDS:g} s"
        )
    return started_at, ended_at


def _decode_server(fields: Fields) -> TimedRecord:
    facts, faults = known_facts(fields.inner("facts").items())
    # `new_launch` is this writer's addition to version 1; other writers leave it out.
    new_launch = dict(fields.items()).get("new_launch") is True
    record = ServerFacts(_server_name(fields), math.nan, facts, "recording", new_launch)
    return TimedRecord(None, record, faults)


def _decode_map(fields: Fields) -> TimedRecord:
    stages = tuple(
        StageGpu(
            dp_rank=stage.maybe(Fields.whole, "dp_rank", 0, _MOST_RANKS - 1) or 0,
            pp_rank=stage.whole("pp_rank", 0, _MOST_STAGES - 1),
            tp_rank=stage.maybe(Fields.whole, "tp_rank", 0, _MOST_RANKS - 1) or 0,
            gpu=stage.gpu(),
            uuid=stage.maybe(Fields.label, "uuid"),
            pid=_pid(stage),
        )
        for stage in fields.each("stages", _MOST_RANKS)
    )
    return TimedRecord(None, StageMap(_server_name(fields), math.nan, stages, "recording"))


def _decode_log(fields: Fields) -> TimedRecord:
    line = LogLine(
        server=_server_name(fields),
        logged_at=fields.instant("t"),
        message=fields.text("message", _MESSAGE_LENGTH),
        pid=_pid(fields),
        title=fields.maybe(Fields.text, "title", _MESSAGE_LENGTH),
    )
    return TimedRecord(line.logged_at, line)


def _decode_ring(fields: Fields, signal: Signal, key: str, high: float) -> TimedRecord:
    started_at, ended_at = _window(fields)
    # Differences of epoch seconds carry the float's noise, about 0.2 µs.
    nominal_seconds = round(ended_at - started_at, 6)
    if nominal_seconds == 0.0:
        raise BadLineError("`end` is not after `start`")
    samples = ((ended_at, fields.number(key, 0.0, high)),)
    return TimedRecord(ended_at, RingSamples(fields.gpu(), signal, nominal_seconds, samples))


def _decode_util(fields: Fields) -> TimedRecord:
    return _decode_ring(fields, Signal.UTILIZATION, "share", 1.0)


def _decode_power(fields: Fields) -> TimedRecord:
    return _decode_ring(fields, Signal.POWER, "watts", MOST_WATTS)


def _decode_gpm(fields: Fields) -> TimedRecord:
    started_at, ended_at = _window(fields)
    window = GpmWindow(
        gpu=fields.gpu(),
        started_at=started_at,
        ended_at=ended_at,
        sm_ratio=fields.maybe(Fields.number, "sm", 0.0, 1.0),
        occupancy_ratio=fields.maybe(Fields.number, "occupancy", 0.0, 1.0),
        dram_ratio=fields.maybe(Fields.number, "dram", 0.0, 1.0),
        tensor_ratio=fields.maybe(Fields.number, "tensor", 0.0, 1.0),
        graphics_ratio=fields.maybe(Fields.number, "graphics", 0.0, 1.0),
    )
    return TimedRecord(ended_at, window)


def _decode_gpu(fields: Fields) -> TimedRecord:
    identity = GpuIdentity(
        gpu=fields.gpu(),
        uuid=fields.label("uuid"),
        model=fields.maybe(Fields.label, "model"),
        pci_bus_id=fields.maybe(Fields.label, "pci_bus_id"),
        power_limit_watts=fields.maybe(Fields.number, "power_limit", 0.0, MOST_WATTS),
        multiprocessors=fields.maybe(Fields.whole, "sms", 1, 1 << 20),
    )
    return TimedRecord(None, identity)


def _level(fields: Fields, key: str) -> ActivityLevel | None:
    level = fields.maybe(Fields.inner, key)
    if level is None:
        return None
    return ActivityLevel(
        watts=level.maybe(Fields.number, "watts", 0.0, MOST_WATTS),
        sm_ratio=level.maybe(Fields.number, "sm", 0.0, 1.0),
        dram_ratio=level.maybe(Fields.number, "dram", 0.0, 1.0),
    )


def _decode_levels(fields: Fields) -> TimedRecord:
    levels = GpuLevels(
        gpu=fields.gpu(),
        idle=_level(fields, "idle"),
        waiting=_level(fields, "waiting"),
        working=_level(fields, "working"),
    )
    return TimedRecord(None, levels)


def _decode_gauges(fields: Fields) -> TimedRecord:
    gauges = decode_gauges(fields)
    return TimedRecord(gauges.read_at, gauges)


def _decode_state(fields: Fields) -> TimedRecord:
    state = decode_state(fields)
    return TimedRecord(state.changed_at, state)


def _decode_xid(fields: Fields) -> TimedRecord:
    error = decode_xid(fields)
    return TimedRecord(error.happened_at, error)


def _decode_load(fields: Fields) -> TimedRecord:
    event = LoadEvent(
        happened_at=fields.instant("t"),
        phase=fields.one_of("event", LoadPhase),
        concurrency=fields.maybe(Fields.whole, "concurrency", 1, 1 << 20),
        output_tokens=fields.maybe(Fields.whole, "output_tokens", 0, EXACT_INTEGER),
        seconds=fields.maybe(Fields.number, "seconds", 0.0, LAST_INSTANT),
        errors=fields.maybe(Fields.whole, "errors", 0, EXACT_INTEGER),
    )
    return TimedRecord(event.happened_at, event)


def _decode_reference(fields: Fields) -> TimedRecord:
    reference = ThroughputReference(
        concurrency=fields.whole("concurrency", 1, 1 << 20),
        output_tokens_per_second=fields.number("output_tokens_per_second", *_TOKENS_PER_SECOND),
    )
    return TimedRecord(None, reference)


_DECODERS: Mapping[str, Callable[[Fields], TimedRecord]] = {
    "server": _decode_server,
    "map": _decode_map,
    "log": _decode_log,
    "util": _decode_util,
    "power": _decode_power,
    "gpm": _decode_gpm,
    "gpu": _decode_gpu,
    "levels": _decode_levels,
    "gauges": _decode_gauges,
    "gpu_state": _decode_state,
    "xid": _decode_xid,
    "load": _decode_load,
    "reference": _decode_reference,
}
