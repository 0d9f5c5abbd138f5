"""In each scenario of the demo exactly the expected alerts fire, by a real Prometheus.

The rules are those that are deployed, in a hurry (`tests.hurried_rules`). What fired once counts,
also in the first seconds of a server.

Five alerts cannot appear in a demo, which has no bad log and no bad exporter: TargetDown,
ExporterSourceDown, JournalLagging, JournalLosingLines and LinesRejected; nor can PipelineStalled,
StageSilent, QueueWithIdleStages and SamplesMissed, whose faults no scenario plays. That they fire
is shown by promtool (`tests/rules`); here it is shown that they do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from exporter.simulator.log_writers import find_journal_remote
from exporter.simulator.scenarios import SCENARIOS
from exporter.thresholds import ALERT_PREFIX, THRESHOLDS
from tests import prometheus_server
from tests.demo_pipelines import running_demos
from tests.hurried_rules import DEPLOYED, HURRY, hurried_rule, seconds, write_hurried_rules
from tests.prometheus_server import Prometheus

EXPECTED: dict[str, set[str]] = {
    "healthy": set(),
    "thundering_herd": {"ThunderingHerd", "BubbleRatioHigh"},  # seven of eight stages wait
    "uneven_split": {"BubbleRatioHigh"},  # 4.5 effective micro-batches: no herd, but a bubble
    "over_split": set(),  # every stage works: what could be gained does not show in shares
    "stage_imbalance": {"StageSkewHigh"},  # the others lose a third of their time: not yet 0.4
    "global_stall": {"BubbleRatioHigh"},  # half of the time nothing works
    "host_bound": {"BubbleRatioHigh"},  # stages idle between passes, which residency shows
    "prefill_interference": {"BubbleRatioHigh"},  # few long prompts at a time
    "client_limited": set(),  # half is unused, but batches of one cannot be split: no fault
    "kv_limited": {"KvPoolExhausted"},  # it explains the queue, and the bubble of 0.3 with it
    "graph_off": {"DecodeWithoutGraph", "BubbleRatioHigh"},  # kernels run in a fifth of the time
    "transfer_bound": {"BubbleRatioHigh"},  # stages wait for what travels
    "gpu_fault": {"GpuThrottled", "StageSkewHigh"},  # the cause and what it does
    "cannot_tell": set(),  # no line, no level: what is not known does not alert
    "idle": set(),
    "aliased": {"MicrobatchesNotObservable"},  # by residency it looks full
    "gpu_lost": {"GpuLost", "GpuXid"},  # 20 s: too short for a stalled pipeline
}
"""Scenario → the alerts that fire, without their prefix."""

IN_EVERY_TEST_RUN = (
    "healthy",
    "idle",
    "thundering_herd",
    "stage_imbalance",
    "kv_limited",
    "gpu_lost",
)
LOOKED_AT_SECONDS = 75
"""The longest range and `for` in a hurry take 60 s, and lines and levels come in the first 15."""
PATIENCE_SECONDS = 60.0

lives = [
    pytest.mark.skipif(
        prometheus_server.why_not() is not None, reason=str(prometheus_server.why_not())
    ),
    pytest.mark.skipif(
        find_journal_remote() is None, reason="systemd-journal-remote is not installed"
    ),
]


def fired(prometheus: Prometheus) -> dict[str, set[str]]:
    """Scenario → alerts that fired at any time so far, without their prefix."""
    found: dict[str, set[str]] = {}
    for labels, _ in prometheus.query('count_over_time(ALERTS{alertstate="firing"}[1h])'):
        whose = labels.get("server") or labels["job"]
        found.setdefault(whose, set()).add(labels["alertname"].removeprefix(ALERT_PREFIX))
    return found


def alerts_of(folder: Path, scenarios: Iterable[str]) -> dict[str, set[str]]:
    """Plays the scenarios, and returns what fired; scenarios without an alert are left out."""
    # The GPU is lost 20 s after its start and must have been seen before.
    names = sorted(scenarios, key=lambda name: name == "gpu_lost")
    with running_demos(folder, names, rules=write_hurried_rules(folder)) as prometheus:

        def looked_at() -> bool:
            scrapes = [count for _, count in prometheus.query("count_over_time(up[1h])")]
            return min(scrapes, default=0.0) >= LOOKED_AT_SECONDS

        def all_fired() -> bool:
            now = fired(prometheus)
            return all(EXPECTED[name] <= now.get(name, set()) for name in names)

        prometheus.wait_until(looked_at, LOOKED_AT_SECONDS + PATIENCE_SECONDS)
        try:
            prometheus.wait_until(all_fired, PATIENCE_SECONDS)
        except AssertionError:
            pass  # what is missing is told by the comparison
        return fired(prometheus)


def expected_of(scenarios: Iterable[str]) -> dict[str, set[str]]:
    return {name: EXPECTED[name] for name in scenarios if EXPECTED[name]}


@pytest.mark.timeout(300)
def test_exactly_the_expected_alerts_fire(tmp_path: Path) -> None:
    assert alerts_of(tmp_path, IN_EVERY_TEST_RUN) == expected_of(IN_EVERY_TEST_RUN)


@pytest.mark.soak
def test_exactly_the_expected_alerts_fire_in_every_scenario(tmp_path: Path) -> None:
    assert alerts_of(tmp_path, SCENARIOS) == expected_of(SCENARIOS)
