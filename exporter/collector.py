"""A snapshot → Prometheus metric families, built anew at every scrape from the catalog alone.

Nothing is registered and nothing is kept: a stage or GPU that is gone leaves no series behind.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)

from exporter import metric_catalog as catalog
from exporter.metric_catalog import BATCH_SIZE_BUCKETS, CATALOG, INFO_FACTS, MetricType
from exporter.pipeline.figures import PipelineFigures
from exporter.records import ConfigHealth, DriverHealth, SourceHealth
from exporter.snapshot import GpuSnapshot, ModeSnapshot, ServerSnapshot, Snapshot, StageSnapshot


class _Process(Protocol):
    def collect(self) -> Iterable[Metric]: ...


@dataclass(frozen=True, slots=True)
class ExporterState:
    """What the exporter says about itself at one instant."""

    version: str
    sources: tuple[SourceHealth, ...]
    driver: DriverHealth | None
    unverified_lines: Mapping[str, int]
    """By source name."""
    recommendations: tuple[str, ...]
    config: ConfigHealth
    retired: SourceHealth
    """Counts of sources that were replaced or removed."""
    crashes: Mapping[str, int]
    """By task."""
    http_refused: Mapping[str, int] = field(default_factory=dict)
    """Connections and requests, by reason."""


class SnapshotCollector:
    """The families of one scrape; hand it to a prometheus_client encoder instead of a registry."""

    def __init__(self, snapshot: Snapshot, state: ExporterState, process: _Process | None) -> None:
        self._snapshot = snapshot
        self._state = state
        self._process = process
        self._families: dict[str, Metric] = {}

    def collect(self) -> Iterator[Metric]:
        """Every family that has a sample, in the catalog's order, then the process's own."""
        for server in self._snapshot.servers:
            for stage in server.stages:
                self._stage(server, stage)
            for pipeline in server.pipelines:
                self._pipeline(server, pipeline)
        for gpu in self._snapshot.gpus:
            self._gpu(gpu)
        self._exporter()
        for key in CATALOG:
            if key in self._families:
                yield self._families[key]
        if self._process is not None:
            yield from self._process.collect()

    def _family(self, key: str) -> Metric:
        family = self._families.get(key)
        if family is None:
            spec = CATALOG[key]
            make = {
                MetricType.GAUGE: GaugeMetricFamily,
                MetricType.COUNTER: CounterMetricFamily,
                MetricType.HISTOGRAM: HistogramMetricFamily,
                MetricType.SUMMARY: SummaryMetricFamily,
            }[spec.type]
            family = self._families[key] = make(spec.name, spec.help, labels=spec.labels)
        return family

    def _put(self, key: str, labels: tuple[object, ...], value: float | None) -> None:
        """Adds one sample; an unknown value adds none."""
        if value is not None:
            family = self._family(key)
            name = CATALOG[key].name
            family.add_sample(
                name, dict(zip(CATALOG[key].labels, map(str, labels), strict=True)), value
            )

    def _stage(self, server: ServerSnapshot, stage: StageSnapshot) -> None:
        at = (server.name, stage.dp_rank, stage.pp_rank)
        for mode in stage.modes:
            self._mode((*at, mode.mode), mode)
        for pool, ratio in stage.token_usage_ratios.items():
            self._put(catalog.STAGE_TOKEN_USAGE, (*at, pool), ratio)
        tokens = (("computed", stage.computed_tokens), ("cached", stage.cached_tokens))
        for origin, count in tokens:
            self._put(catalog.STAGE_PREFILL_TOKENS, (*at, origin), count)
        for key, value in (
            (catalog.STAGE_RUNNING_REQUESTS, stage.running_reqs),
            (catalog.STAGE_QUEUED_REQUESTS, stage.queued_reqs),
            (catalog.STAGE_GENERATION_TOKENS_PER_SECOND, stage.generation_tokens_per_second),
            (catalog.STAGE_RETRACTED_REQUESTS, stage.retracted_requests),
            (catalog.STAGE_WATCHDOG_TIMEOUTS, stage.watchdog_timeouts),
            (catalog.STAGE_FORWARD_OCCUPANCY, stage.forward_occupancy_ratio),
            (catalog.STAGE_FORWARD_IDLE_OCCUPANCY, stage.forward_idle_occupancy_ratio),
            (catalog.STAGE_ACCEPT_LENGTH, stage.accept_length),
            (catalog.STAGE_LAST_BATCH_TIMESTAMP, stage.last_batch_at),
            (catalog.STAGE_GPU_UTILIZATION, stage.gpu_utilization_ratio),
        ):
            self._put(key, at, value)

    def _mode(self, at: tuple[object, ...], mode: ModeSnapshot) -> None:
        self._put(catalog.STAGE_BATCHES, at, mode.batches)
        self._put(catalog.STAGE_BATCH_SIZE, at, mode.batch_size)
        self._put(catalog.STAGE_GRAPH_BATCHES, at, mode.graph_batches)
        total, buckets = 0, []
        for bound, count in zip((*BATCH_SIZE_BUCKETS, "+Inf"), mode.bucket_counts, strict=True):
            total += count
            buckets.append((str(bound), float(total)))
        family = self._family(catalog.STAGE_BATCH_REQUESTS)
        family.add_metric([str(label) for label in at], buckets, sum_value=mode.size_sum)  # type: ignore[attr-defined]  # a histogram family

    def _pipeline(self, server: ServerSnapshot, pipeline: PipelineFigures) -> None:
        at = (server.name, pipeline.dp_rank)
        self._put(catalog.INFO, (*at, *_info(server)), 1)
        for stage in pipeline.stages:
            place = (*at, stage.pp_rank)
            if stage.method is not None:
                self._put(catalog.STAGE_WORKING, (*place, stage.method), stage.working_ratio)
            for (state, method), seconds in stage.seconds.items():
                self._put(catalog.STAGE_SECONDS, (*place, state, method), seconds)
            self._put(catalog.STAGE_BUBBLE_SECONDS, place, stage.bubble_seconds)
            self._put(catalog.STAGE_INFLIGHT_SECONDS, place, stage.inflight_seconds)
        for count, seconds in enumerate(pipeline.active_stages_seconds):
            self._put(catalog.ACTIVE_STAGES_SECONDS, (*at, count), seconds)
        slots = pipeline.slots
        for key, value in (
            (catalog.STAGES, pipeline.expected_stages),
            (catalog.OCCUPANCY, pipeline.occupancy_ratio),
            (catalog.BUBBLE, pipeline.bubble_ratio),
            (catalog.ACTIVE_STAGES_WINDOW_SECONDS, pipeline.active_stages_window_seconds),
            (catalog.STAGE_SKEW, pipeline.skew_ratio),
            (catalog.BALANCE, pipeline.balance_ratio),
            (catalog.INFLIGHT_SECONDS, pipeline.inflight_seconds),
            (catalog.MICROBATCH_SLOTS, slots.slots),
            (catalog.MICROBATCH_SLOTS_OBSERVABLE, slots.observable),
            (catalog.EFFECTIVE_MICROBATCHES, slots.effective),
            (catalog.PREDICTED_GAIN, pipeline.predicted_gain_ratio),
        ):
            self._put(key, at, value)

    def _gpu(self, gpu: GpuSnapshot) -> None:
        at = (gpu.gpu, gpu.uuid)
        identity = (*at, gpu.model or "", gpu.pci_bus_id or "")
        for rank in gpu.ranks:
            place = (rank.server, rank.dp_rank, rank.pp_rank, rank.tp_rank)
            self._put(catalog.GPU_INFO, (*identity, *place), 1)
        if not gpu.ranks:
            self._put(catalog.GPU_INFO, (*identity, "", "", "", ""), 1)
        for key, value in (
            (catalog.GPU_UP, gpu.up),
            (catalog.GPU_UTILIZATION, gpu.utilization_ratio),
            (catalog.GPU_RESIDENT_SECONDS, gpu.resident_seconds),
            (catalog.GPU_SM_ACTIVE_SECONDS, gpu.sm_active_seconds),
            (catalog.GPU_DRAM_ACTIVE_SECONDS, gpu.dram_active_seconds),
            (catalog.GPU_POWER_WATTS, gpu.power_watts),
            (catalog.GPU_POWER_LIMIT_WATTS, gpu.power_limit_watts),
            (catalog.GPU_ENERGY_JOULES, gpu.energy_joules),
            (catalog.GPU_MEMORY_USED_BYTES, gpu.memory_used_bytes),
            (catalog.GPU_MEMORY_TOTAL_BYTES, gpu.memory_total_bytes),
            (catalog.GPU_TEMPERATURE_CELSIUS, gpu.temperature_celsius),
            (catalog.GPU_SM_CLOCK_HERTZ, gpu.sm_clock_hertz),
            (catalog.GPU_PCIE_TRANSMIT_BYTES, gpu.pcie_transmit_bytes),
            (catalog.GPU_PCIE_RECEIVE_BYTES, gpu.pcie_receive_bytes),
            (catalog.GPU_LAST_SAMPLE_TIMESTAMP, gpu.last_sample_at),
        ):
            self._put(key, at, value)
        for key, series in (
            (catalog.GPU_OBSERVED_SECONDS, gpu.observed_seconds),
            (catalog.GPU_MISSED_SECONDS, gpu.missed_seconds),
            (catalog.GPU_THROTTLED_SECONDS, gpu.throttled_seconds),
            (catalog.GPU_XID_ERRORS, gpu.xid_errors),
        ):
            for label, seconds in series.items():
                self._put(key, (*at, label), seconds)

    def _exporter(self) -> None:
        state, snapshot = self._state, self._snapshot
        self._put(catalog.BUILD_INFO, (state.version, platform.python_version()), 1)
        for source in state.sources:
            self._put(catalog.SOURCE_UP, (source.name,), int(source.up))
        for name, count in state.unverified_lines.items():
            self._put(catalog.UNVERIFIED_LINES, (name,), count)
        for setting in state.recommendations:
            self._put(catalog.RECOMMENDATION, (setting,), 1)
        for task, count in sorted(state.crashes.items()):
            self._put(catalog.CRASHES, (task,), count)
        counted = (*state.sources, state.retired)
        lags = [s.lag_seconds for s in state.sources if s.lag_seconds is not None]
        for key, value in (
            (catalog.JOURNAL_LINES, sum(s.lines for s in counted)),
            (catalog.JOURNAL_GAPS, sum(s.gaps for s in counted)),
            (
                catalog.JOURNAL_SUPPRESSED_MESSAGES,
                sum(s.suppressed_messages for s in counted),
            ),
            (catalog.JOURNAL_LAG_SECONDS, max(lags, default=None)),
            (catalog.UNKNOWN_FIELDS, snapshot.unknown_fields),
            (catalog.CONFIG_LAST_RELOAD_SUCCESSFUL, int(state.config.newest_in_force)),
            (catalog.CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP, state.config.loaded_at),
        ):
            self._put(key, (), value)
        for reason, count in state.http_refused.items():
            self._put(catalog.HTTP_REFUSED, (reason,), count)
        self._rejected()
        self._driver()

    def _rejected(self) -> None:
        refused = {reason.value: count for reason, count in self._snapshot.refused_lines.items()}
        for source in (*self._state.sources, self._state.retired):
            for reason, count in source.read_refusals.items():
                refused[reason.value] = refused.get(reason.value, 0) + count
        for label, count in sorted(refused.items()):
            self._put(catalog.REJECTED_LINES, (label,), count)

    def _driver(self) -> None:
        driver = self._state.driver
        if driver is None:
            return
        calls = self._family(catalog.NVML_CALL_SECONDS)
        for call, count in sorted(dict(driver.call_counts).items()):
            calls.add_metric([call], count, driver.call_seconds.get(call, 0.0))  # type: ignore[attr-defined]  # a summary family
        for (call, code), count in sorted(dict(driver.errors).items()):
            self._put(catalog.NVML_ERRORS, (call, code), count)
        for signal, count in sorted(dict(driver.samples).items()):
            self._put(catalog.SAMPLES, (signal,), count)


def _info(server: ServerSnapshot) -> tuple[str, ...]:
    """Label values of `info`: the model's short name, then the facts; empty where not known."""
    facts = server.facts
    model = facts.get("served_model_name") or facts.get("model_path") or ""
    values = (facts.get(name) for name in INFO_FACTS)
    return (str(model), *("" if value is None else str(value) for value in values))
