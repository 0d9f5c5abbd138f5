"""Runs the exporter and other witnesses beside a load, and compares each with the truth."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pynvml

from bench.duty_cycle_loads import Load
from bench.duty_cycle_truth import Truth, covered_window
from bench.gpu_witnesses import PERCENT, ProcessMeter, Witness
from tests.running import Metrics, RunningExporter

SETTLE_SECONDS = 3.0
"""Of a pattern, not used: samples of the time before are still on their way."""
BEAT_SECONDS = 1.0
MICROSECONDS = 1e6
_STAGES = 8


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one scrape of the exporter said about the GPU."""

    at: float
    resident_seconds: float
    observed_seconds: float
    missed_seconds: float
    last_sample_at: float

    @classmethod
    def of(cls, metrics: Metrics, uuid: str) -> Scrape | None:
        """`None` while it has no utilization sample."""
        values = (
            metrics.value("gpu_resident_seconds_total", uuid=uuid),
            metrics.value("gpu_observed_seconds_total", uuid=uuid, signal="utilization"),
            metrics.value("gpu_missed_seconds_total", uuid=uuid, signal="utilization"),
            metrics.value("gpu_last_sample_timestamp_seconds", uuid=uuid),
        )
        known = [value for value in values if value is not None]
        return cls(time.time(), *known) if len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One pattern: shares over the same window, `None` from who gave no reading in it."""

    pattern: str
    window: tuple[float, float]
    window_exact: bool
    missed_seconds: float
    truth: float
    exporter: float
    others: dict[str, float | None]
    ring_rmse: float | None
    """Of the driver's own samples against the truth of each one's span."""


class Ring:
    """The driver's utilization ring, read by this script as well: when which sample ended."""

    def __init__(self, uuid: str) -> None:
        pynvml.nvmlInit()
        self._handle = self._find(uuid)
        self._last_us = 0
        self.samples: list[tuple[float, float]] = []

    def _find(self, uuid: str) -> Any:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            if pynvml.nvmlDeviceGetUUID(handle) == uuid:
                return handle
        raise RuntimeError(f"NVML lists no {uuid}")

    def look(self) -> None:
        """Adds the samples that are new."""
        kind = pynvml.NVML_GPU_UTILIZATION_SAMPLES
        try:
            _, samples = pynvml.nvmlDeviceGetSamples(self._handle, kind, self._last_us)
        except pynvml.NVMLError_NotFound:
            return  # none is newer
        for sample in samples:
            if sample.timeStamp > self._last_us:
                self._last_us = sample.timeStamp
                at = sample.timeStamp / MICROSECONDS
                self.samples.append((at, sample.sampleValue.uiVal / PERCENT))

    def driver_version(self) -> str:
        """As nvidia-smi prints it; "unknown" from a driver that does not say."""
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError:
            return "unknown"


def decode_lines() -> list[str]:
    """What a server would print meanwhile: one decode line of each stage."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return [
        f"[{stamp} PP{rank}] Decode batch, #running-req: 4, #token: 4096, token usage: 0.10, "
        "cuda graph: True, gen throughput (token/s): 800.00, #queue-req: 0"
        for rank in range(_STAGES)
    ]


class Measurement:
    """Everything that runs beside the load, and what it said."""

    def __init__(self, load: Load, exporter: RunningExporter, witnesses: list[Witness]) -> None:
        self.scrapes: list[Scrape] = []
        self.metrics = Metrics()
        self.witnesses = witnesses
        self.ring = Ring(load.uuid)
        self._load = load
        self._exporter = exporter
        self.processes: dict[str, dict[str, float]] = {}

    def run(self, seconds: float) -> None:
        """Scrapes once a second until the load is over, at most that long."""
        uuid = self._load.uuid
        self._exporter.wait_for(lambda metrics: Scrape.of(metrics, uuid))
        meters = {"exporter": ProcessMeter(self._exporter.pid)}
        meters |= {w.name: meter for w in self.witnesses if (meter := w.meter()) is not None}
        self._load.go()
        beat = give_up_at = time.monotonic()
        give_up_at += seconds
        while not self._load.is_over():
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"the load was not over after {seconds:.0f} s")
            self._exporter.feed(*decode_lines())
            self.metrics = self._exporter.metrics()
            if (scrape := Scrape.of(self.metrics, uuid)) is not None:
                self.scrapes.append(scrape)
            for witness in self.witnesses:
                witness.look()
            self.ring.look()
            beat += BEAT_SECONDS
            time.sleep(max(0.0, beat - time.monotonic()))
        self.processes = {
            name: cost for name, meter in meters.items() if (cost := meter.cost()) is not None
        }

    def compare(self, truth: Truth) -> Comparison | None:
        """What everybody said of one pattern; `None` without two scrapes inside it."""
        inside = [
            scrape
            for scrape in self.scrapes
            if scrape.last_sample_at > truth.began_at + SETTLE_SECONDS
            and scrape.at < truth.ended_at
        ]
        if len(inside) < 2:
            return None
        first, last = inside[0], inside[-1]
        covered = last.observed_seconds - first.observed_seconds
        start, end, exact = covered_window(
            [at for at, _ in self.ring.samples], first.last_sample_at, last.last_sample_at, covered
        )
        return Comparison(
            pattern=truth.pattern.label,
            window=(start, end),
            window_exact=exact,
            missed_seconds=last.missed_seconds - first.missed_seconds,
            truth=truth.busy_share(start, end),
            exporter=(last.resident_seconds - first.resident_seconds) / covered,
            others={w.name: mean_between(w.readings, start, end) for w in self.witnesses},
            ring_rmse=self._ring_rmse(truth, start, end),
        )

    def _ring_rmse(self, truth: Truth, start: float, end: float) -> float | None:
        samples = [sample for sample in self.ring.samples if start <= sample[0] <= end]
        errors = [
            share - truth.busy_share(before, at)
            for (before, _), (at, share) in itertools.pairwise(samples)
        ]
        return math.sqrt(statistics.fmean(e * e for e in errors)) if errors else None

    def about_the_exporter(self) -> dict[str, Any]:
        """What its last scrape says of its own work."""
        counts = self.metrics.matching("exporter_nvml_call_seconds_count")
        calls = {}
        for (_, labels), count in sorted(counts.items(), key=lambda item: -item[1]):
            call = dict(labels)["call"]
            total = self.metrics.total("exporter_nvml_call_seconds_sum", call=call)
            calls[call] = {"count": int(count), "mean_us": round(total / count * MICROSECONDS, 1)}
        return {
            "nvml_calls": calls,
            "nvml_errors": _by_labels(self.metrics, "exporter_nvml_errors_total"),
            "samples": _by_labels(self.metrics, "exporter_samples_total"),
            "missed_seconds": _by_labels(self.metrics, "gpu_missed_seconds_total"),
            "gpm_answered": bool(self.metrics.matching("gpu_sm_active_seconds_total")),
            "sources_up": _by_labels(self.metrics, "exporter_source_up"),
            "decode_lines": self.metrics.total("stage_batches_total", mode="decode"),
        }


def _by_labels(metrics: Metrics, name: str) -> dict[str, float]:
    return {
        " ".join(value for _, value in sorted(labels)): number
        for (_, labels), number in metrics.matching(name).items()
    }


def mean_between(readings: list[tuple[float, float]], start: float, end: float) -> float | None:
    """Mean of the readings in that window; `None` without any."""
    inside = [share for at, share in readings if start < at <= end]
    return statistics.fmean(inside) if inside else None
