"""Debian's Prometheus scrapes a running exporter at three intervals and gets the true shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import prometheus_server
from tests.fake_nvml import FakeNvml
from tests.prometheus_server import Prometheus, running_prometheus
from tests.running import PROMETHEUS_ACCEPTS, RunningExporter, promtool_complaints

RHYTHMS = (
    (0.04, 0.5),
    (0.1, 0.05),
    (0.2, 0.5),
    (0.35, 0.32),
    (0.35, 0.78),
    (0.5, 0.55),
    (0.9, 0.97),
    (1.0, 0.0),
)
"""(period in seconds, busy share) by GPU, shorter and longer than the ring's 0.2 s."""
INTERVALS_SECONDS = (1, 5, 15)
RANGE = "60s"
SCRAPES = 4
"""Of the slowest job; with the wait for its first one they take 45 to 60 s."""
SHARE = (
    f"rate(sglang_pipeline_gpu_resident_seconds_total[{RANGE}]) / ignoring(signal) "
    f'rate(sglang_pipeline_gpu_observed_seconds_total{{signal="utilization"}}[{RANGE}])'
)

pytestmark = pytest.mark.skipif(
    prometheus_server.why_not() is not None, reason=str(prometheus_server.why_not())
)


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[RunningExporter]:
    fake = FakeNvml(tmp_path / "nvml", gpus=len(RHYTHMS))
    for gpu, (period, duty) in enumerate(RHYTHMS):
        fake.control.gpu[gpu].period_seconds, fake.control.gpu[gpu].duty = period, duty
    with RunningExporter(["serve", "--stdin"], tmp_path, fake.environment()) as running:
        running.wait_for(lambda metrics: metrics.total("gpu_up") == len(RHYTHMS))
        yield running


@pytest.fixture
def prometheus(exporter: RunningExporter, tmp_path: Path) -> Iterator[Prometheus]:
    target = f"127.0.0.1:{exporter.port}"
    jobs = {f"every_{seconds}s": (target, seconds) for seconds in INTERVALS_SECONDS}
    with running_prometheus(tmp_path, jobs) as running:
        yield running


@pytest.mark.timeout(300)
def test_rate_gives_the_true_share_at_each_scrape_interval(
    exporter: RunningExporter, prometheus: Prometheus
) -> None:
    """One test for all that a long-running Prometheus shows, because it takes a minute."""
    slowest = f'count_over_time(up{{job="every_{INTERVALS_SECONDS[-1]}s"}}[5m]) >= {SCRAPES}'
    assert_scraped_as_openmetrics(exporter, prometheus)
    assert promtool_complaints(exporter.get("/metrics").text) == ""

    prometheus.wait_until(lambda: prometheus.query(slowest), within=150)

    shares = prometheus.query(SHARE)
    assert len(shares) == len(INTERVALS_SECONDS) * len(RHYTHMS)
    errors = {
        (labels["job"], labels["gpu"]): share - RHYTHMS[int(labels["gpu"])][1]
        for labels, share in shares
    }
    assert {key: error for key, error in errors.items() if abs(error) > 0.01} == {}
    assert_scrapes_work(prometheus)


def assert_scraped_as_openmetrics(exporter: RunningExporter, prometheus: Prometheus) -> None:
    answer = exporter.get("/metrics", PROMETHEUS_ACCEPTS)
    assert answer.content_type.startswith("application/openmetrics-text; version=1.0.0")
    # Only in OpenMetrics does the family of a counter go by a name without `_total`.
    family = "sglang_pipeline_gpu_resident_seconds"
    prometheus.wait_until(lambda: prometheus.ask("targets/metadata", metric=family), within=60)
    assert prometheus.ask("targets/metadata", metric=f"{family}_total") == []


def assert_scrapes_work(prometheus: Prometheus) -> None:
    """All of them; of those that may take a second at most, a busy machine may miss a few."""
    ups = {
        labels["job"]: share for labels, share in prometheus.query(f"avg_over_time(up[{RANGE}])")
    }
    fastest, *others = (ups.pop(f"every_{seconds}s") for seconds in INTERVALS_SECONDS)
    assert ups == {}
    assert fastest > 0.9
    assert others == [1.0, 1.0]

    def all_are_up() -> bool:
        targets = prometheus.ask("targets")["activeTargets"]
        return [(one["health"], one["lastError"]) for one in targets] == [("up", "")] * len(targets)

    prometheus.wait_until(all_are_up, within=60)
