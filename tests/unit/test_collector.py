"""A snapshot as exposition text."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from exporter.collector import ExporterState, SnapshotCollector
from exporter.metric_catalog import CATALOG
from exporter.pipeline.figures import PipelineFigures, SlotFigures, StageFigures, StageState
from exporter.records import (
    ConfigHealth,
    DriverHealth,
    EventKind,
    GpmWindow,
    GpuGauges,
    GpuIdentity,
    Method,
    Refusal,
    RefusedLine,
    ServerEvent,
    Signal,
    SourceHealth,
    StageGpu,
    StageMap,
    XidError,
)
from tests.unit.test_pipeline_model import T, decode, facts, fold, prefill, ring

SOURCES = (
    SourceHealth("journal:kimi", up=True, lines=1000, gaps=1, lag_seconds=0.2),
    SourceHealth("nvml", up=False, read_refusals={Refusal.NOT_WHOLE: 2}),
)
DRIVER = DriverHealth(
    call_counts={"nvmlDeviceGetSamples": 3},
    call_seconds={"nvmlDeviceGetSamples": 0.006},
    errors={("nvmlGpmSampleGet", "IN_USE"): 1},
    samples={Signal.UTILIZATION: 15},
)
STATE = ExporterState(
    "0.1.0",
    SOURCES,
    DRIVER,
    {"journal:kimi": 0},
    ("decode_log_interval",),
    ConfigHealth(newest_in_force=True, loaded_at=T),
    SourceHealth("retired", lines=20, read_refusals={Refusal.NOT_WHOLE: 1}),
    {"journal:kimi": 0, "housekeeping": 2},
    {"busy": 3},
)


def everything() -> SnapshotCollector:
    """One of each series: 8 stages on 8 GPUs."""
    places = tuple(StageGpu(0, pp, 0, gpu=pp, uuid=f"GPU-{pp}", pid=4000 + pp) for pp in range(8))
    records: list[object] = [
        facts(pp_size=8),
        StageMap("kimi", T, places, "process_title"),
        RefusedLine("kimi", T, Refusal.GLUED),
    ]
    for pp in range(8):
        records += [
            decode(
                pp=pp,
                graph=True,
                accept_length=2.4,
                forward_occupancy_ratio=0.9,
                forward_idle_occupancy_ratio=0.95,
            ),
            prefill(pp=pp),
            ServerEvent("kimi", T, EventKind.RETRACTION, 0, pp, 0, 4000 + pp, 2),
            ServerEvent("kimi", T, EventKind.WATCHDOG, 0, pp, 0, 4000 + pp),
            GpuIdentity(pp, f"GPU-{pp}", "NVIDIA H200", "00000000:18:00.0", 700.0, 132),
            ring(pp, int(T), 0.5),
            GpmWindow(pp, T, T + 1, 0.6, 0.1, 0.5, 0.03, 0.9),
            GpuGauges(pp, T, 0.5, 250.0, 700.0, 1e6, 2**33, 2**37, 60.0, 1.98e9, 10, 20, ()),
            GpuGauges(
                pp, T + 1, 0.5, 250.0, 700.0, 1e6, 2**33, 2**37, 60.0, 1.98e9, 10, 20, ("sw",)
            ),
            XidError(pp, T, 79),
        ]
    snapshot = fold(*records).snapshot(T + 1)
    server = replace(snapshot.servers[0], pipelines=(pipeline(),))
    return SnapshotCollector(replace(snapshot, servers=(server,)), STATE, None)


def pipeline() -> PipelineFigures:
    """A pipeline of which everything is known."""
    stages = tuple(
        StageFigures(
            pp_rank=pp,
            seconds={(state, Method.GPM): 10.0 for state in StageState},
            bubble_seconds=2.0,
            inflight_seconds=25.0,
            working_ratio=0.9,
            waiting_ratio=0.05,
            method=Method.GPM,
            mean_working_ratio=0.9,
            rank_spread_ratio=0.0,
        )
        for pp in range(8)
    )
    return PipelineFigures(
        dp_rank=0,
        stages=stages,
        expected_stages=8,
        observed_seconds=30.0,
        active_stages_seconds=(1.0,) * 9,
        active_stages_window_seconds=0.02,
        inflight_seconds=25.0,
        in_flight=True,
        occupancy_ratio=0.9,
        bubble_ratio=0.1,
        inflight_occupancy_ratio=0.9,
        skew_ratio=0.02,
        balance_ratio=0.98,
        active_stages_mean=7.2,
        variance=None,
        slots=SlotFigures(slots=8, observable=8, active=8, sizes=(4,) * 8, effective=8.0),
        predicted_gain_ratio=1.0,
        late_seconds=0.0,
    )


def families(text: str) -> Iterator[Metric]:
    yield from text_string_to_metric_families(text)


def test_every_metric_of_the_catalog_can_be_shown() -> None:
    shown = {sample.name for family in everything().collect() for sample in family.samples}
    for spec in CATALOG.values():
        assert any(name.startswith(spec.name) for name in shown), spec.name


def test_every_family_stands_in_the_catalog_with_its_type_and_help() -> None:
    specs = {spec.name.removesuffix("_total"): spec for spec in CATALOG.values()}
    for family in everything().collect():
        assert family.type == specs[family.name].type
        assert family.documentation == specs[family.name].help


def test_promtool_finds_nothing_to_say() -> None:
    text = generate_latest(everything())
    lint = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (lint.stdout, lint.stderr, lint.returncode) == (b"", b"", 0)


def test_openmetrics_parses_and_says_the_same() -> None:
    parsed = list(families(generate_openmetrics(everything()).decode()))
    plain = {s.name for family in everything().collect() for s in family.samples}
    assert {s.name for family in parsed for s in family.samples} == plain


def test_no_created_series_and_at_most_700_in_all() -> None:
    lines = [x for x in generate_latest(everything()).decode().split("\n") if x and x[0] != "#"]
    assert not any("_created" in line for line in lines)
    assert len(lines) <= 700


def test_an_unknown_value_has_no_series() -> None:
    collector = SnapshotCollector(fold(facts(pp_size=2)).snapshot(T), STATE, None)
    text = generate_latest(collector).decode()
    assert "stage_running_requests" not in text
    assert 'stage_batches_total{dp_rank="0",mode="decode",pp_rank="1",server="kimi"} 0.0' in text


def test_a_gpu_nobody_runs_on_has_an_info_series_with_empty_ranks() -> None:
    collector = SnapshotCollector(fold(GpuIdentity(5, "GPU-5", "H200")).snapshot(T), STATE, None)
    text = generate_latest(collector).decode()
    info = re.search(r"^sglang_pipeline_gpu_info\{(.*)\} 1.0$", text, re.MULTILINE)
    assert info is not None
    assert 'server=""' in info[1]
    assert 'pp_rank=""' in info[1]


@pytest.mark.parametrize("name", ['ki"mi', "a\\b", "a\nb"])
def test_a_hostile_server_name_is_escaped(name: str) -> None:
    collector = SnapshotCollector(fold(decode(server=name)).snapshot(T), STATE, None)
    parsed = families(generate_openmetrics(collector).decode())
    names = {s.labels["server"] for f in parsed for s in f.samples if "server" in s.labels}
    assert names == {name}


def test_what_replaced_sources_counted_stays_in_the_sums() -> None:
    assert "exporter_journal_lines_total 1020.0" in generate_latest(everything()).decode()


def test_refusals_of_sources_and_of_admission_add_up() -> None:
    text = generate_latest(everything()).decode()
    assert 'rejected_lines_total{reason="glued"} 1.0' in text
    assert 'rejected_lines_total{reason="not_whole"} 3.0' in text
