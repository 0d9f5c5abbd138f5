"""What a GPU's driver says at one instant, in format v1, both ways: gauges, state changes, XIDs.

In: objects of lines, records. Out: the other. `null` and a missing key are "not known"; an empty
list of throttle reasons is none in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exporter.recordings.fields import EXACT_INTEGER, MOST_WATTS, NAME_LENGTH, BadLineError, Fields
from exporter.records import GpuGauges, GpuState, XidError

_MOST_REASONS = 64
_MOST_XID = 1 << 16


@dataclass(frozen=True, slots=True)
class _Gauge:
    """Where a gauge stands in the record, and what it can be."""

    attribute: str
    low: float
    high: float
    is_whole: bool = False


_GAUGES: Mapping[str, _Gauge] = {
    "utilization": _Gauge("polled_utilization_ratio", 0.0, 1.0),
    "watts": _Gauge("power_watts", 0.0, MOST_WATTS),
    "power_limit": _Gauge("power_limit_watts", 0.0, MOST_WATTS),
    "energy": _Gauge("energy_joules", 0.0, 1e15),
    "memory_used": _Gauge("memory_used_bytes", 0, EXACT_INTEGER, is_whole=True),
    "memory_total": _Gauge("memory_total_bytes", 0, EXACT_INTEGER, is_whole=True),
    "temperature": _Gauge("temperature_celsius", -300.0, 1000.0),
    "sm_clock": _Gauge("sm_clock_hertz", 0.0, 1e12),
    "pcie_tx": _Gauge("pcie_transmit_bytes", 0, EXACT_INTEGER, is_whole=True),
    "pcie_rx": _Gauge("pcie_receive_bytes", 0, EXACT_INTEGER, is_whole=True),
}
"""By key, without the throttle reasons."""


def encode_gauges(gauges: GpuGauges) -> dict[str, Any]:
    """The object of momentary readings."""
    values: dict[str, Any] = {"type": "gauges", "t": round(gauges.read_at, 6), "gpu": gauges.gpu}
    for key, gauge in _GAUGES.items():
        value = getattr(gauges, gauge.attribute)
        if value is not None:
            values[key] = value if gauge.is_whole else round(value, 6)
    if gauges.throttle_reasons is not None:
        values["throttle"] = list(gauges.throttle_reasons)
    return values


def decode_gauges(fields: Fields) -> GpuGauges:
    """The record of momentary readings.

    Raises:
        BadLineError: A value that cannot be true.
    """
    known: dict[str, Any] = {}
    for key, gauge in _GAUGES.items():
        if not fields.has(key):
            continue
        if gauge.is_whole:
            known[gauge.attribute] = fields.whole(key, int(gauge.low), int(gauge.high))
        else:
            known[gauge.attribute] = fields.number(key, gauge.low, gauge.high)
    reasons = fields.maybe(_reasons, "throttle")
    return GpuGauges(fields.gpu(), fields.instant("t"), **known, throttle_reasons=reasons)


def _reasons(fields: Fields, key: str) -> tuple[str, ...]:
    return fields.labels(key, _MOST_REASONS, NAME_LENGTH)


def encode_state(state: GpuState) -> dict[str, Any]:
    """The object of a GPU that stopped answering or came back."""
    values: dict[str, Any] = {"type": "gpu_state", "t": round(state.changed_at, 6)}
    values |= {"gpu": state.gpu, "up": state.up}
    return values | ({} if state.reason is None else {"reason": state.reason})


def decode_state(fields: Fields) -> GpuState:
    """The record of a GPU that stopped answering or came back.

    Raises:
        BadLineError: A value that cannot be true.
    """
    up = dict(fields.items()).get("up")
    if not isinstance(up, bool):
        raise BadLineError("`up` is neither true nor false")
    reason = fields.maybe(Fields.label, "reason", NAME_LENGTH)
    return GpuState(fields.gpu(), fields.instant("t"), up, reason)


def encode_xid(error: XidError) -> dict[str, Any]:
    """The object of an error the driver reported."""
    return {"type": "xid", "t": round(error.happened_at, 6), "gpu": error.gpu, "xid": error.xid}


def decode_xid(fields: Fields) -> XidError:
    """The record of an error the driver reported.

    Raises:
        BadLineError: A value that cannot be true.
    """
    return XidError(fields.gpu(), fields.instant("t"), fields.whole("xid", 0, _MOST_XID))
