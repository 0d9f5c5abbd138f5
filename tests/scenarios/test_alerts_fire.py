"""In each scenario of the demo exactly the expected alerts fire, by a real Prometheus.

The rules are those that are deployed, in a hurry (`tests.hurried_rules`). An alert that fired at
any time counts, also in the first seconds of a server.

No scenario plays the faults of `NOT_PLAYED`: a demo's log, journal and exporter are sound, each of
its stages prints, and its queues have a full pool to explain them. That these alerts fire at their
faults is shown by promtool (`tests/rules`); here it is shown that they stay silent.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from exporter.simulator.log_writers import find_journal_remote
from exporter.simulator.scenarios import SCENARIOS
from exporter.thresholds import ALERT_PREFIX, THRESHOLDS
from tests import prometheus_server
from tests.demo_pipelines import running_demos
from tests.hurried_rules import (
    DEPLOYED,
    HURRY,
    SHORTEST_RANGE_SECONDS,
    deployed_groups,
    seconds,
    write_hurried_rules,
)
from tests.prometheus_server import Prometheus

EXPECTED: dict[str, set[str]] = {
    "healthy": set(),
    "thundering_herd": {"ThunderingHerd", "BubbleRatioHigh"},  # seven of eight stages wait
    "uneven_split": {"BubbleRatioHigh"},  # 4.5 effective micro-batches: no herd, but a bubble
    "over_split": set(),  # every stage works: what could be gained is in no share
    "stage_imbalance": {"StageSkewHigh"},  # a third of the time is lost: below the bubble's bound
    "global_stall": {"BubbleRatioHigh"},  # nothing works for half of the time
    "host_bound": {"BubbleRatioHigh"},  # idle between passes, which residency shows, too
    "prefill_interference": {"BubbleRatioHigh"},  # decode stands behind a few long prompts
    "client_limited": set(),  # half is lost, but batches of one cannot be split: no fault
    "kv_limited": {"KvPoolExhausted"},  # explains its queue; a bubble of 0.3 is below the bound
    "graph_off": {"DecodeWithoutGraph", "BubbleRatioHigh"},  # kernels run in a fifth of a pass
    "transfer_bound": {"BubbleRatioHigh"},  # stages wait for what travels
    "gpu_fault": {"GpuThrottled", "StageSkewHigh"},  # the cause, and what it does to the others
    "cannot_tell": set(),  # no lines, no levels: what is not known does not alert
    "idle": set(),
    "aliased": {"MicrobatchesNotObservable"},  # one slot of eight is shown
    "gpu_lost": {"GpuLost", "GpuXid"},  # for 20 s, and nobody queues: no stalled pipeline
}
"""Scenario → the alerts that fire, without their prefix."""

NOT_PLAYED = {
    "PipelineStalled",
    "StageSilent",
    "QueueWithIdleStages",
    "SamplesMissed",
    "ExporterSourceDown",
    "ConfigReloadFailed",
    "JournalLagging",
    "JournalLosingLines",
    "LinesRejected",
    "TargetDown",
}

IN_EVERY_TEST_RUN = (
    "healthy",
    "idle",
    "thundering_herd",
    "stage_imbalance",
    "kv_limited",
    "gpu_lost",
)
LOOKED_AT_SECONDS = 55
"""More than the first 15 for lines and levels, the longest range and `for` of a share in a hurry."""
PATIENCE_SECONDS = 60.0
"""For a machine that starts the demos slowly."""

watched = pytest.mark.skipif(
    prometheus_server.why_not() is not None or find_journal_remote() is None,
    reason="prometheus or systemd-journal-remote is not installed",
)


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
        with contextlib.suppress(AssertionError):  # what is missing, the caller sees
            prometheus.wait_until(all_fired, PATIENCE_SECONDS)
        return fired(prometheus)


def expected_of(scenarios: Iterable[str]) -> dict[str, set[str]]:
    return {name: EXPECTED[name] for name in scenarios if EXPECTED[name]}


@watched
@pytest.mark.timeout(300)
def test_exactly_the_expected_alerts_fire(tmp_path: Path) -> None:
    assert alerts_of(tmp_path, IN_EVERY_TEST_RUN) == expected_of(IN_EVERY_TEST_RUN)


@watched
@pytest.mark.soak
def test_exactly_the_expected_alerts_fire_in_every_scenario(tmp_path: Path) -> None:
    assert alerts_of(tmp_path, SCENARIOS) == expected_of(SCENARIOS)


def test_every_scenario_is_expected_to_do_something_and_every_alert_to_be_played_or_not() -> None:
    assert EXPECTED.keys() == SCENARIOS.keys()
    played = set().union(*EXPECTED.values())
    assert played | NOT_PLAYED == THRESHOLDS.keys()
    assert not played & NOT_PLAYED


def test_rules_in_a_hurry_differ_from_the_deployed_ones_in_their_times_alone(
    tmp_path: Path,
) -> None:
    for path in write_hurried_rules(tmp_path):
        hurried, deployed = _rules(path), _rules(DEPLOYED / path.name)
        assert [_timeless(rule) for rule in hurried] == [_timeless(rule) for rule in deployed]
        for fast, slow in zip(hurried, deployed, strict=True):
            assert _held_seconds(fast) == _held_seconds(slow) // HURRY
            assert _ranges(fast) == [
                max(span // HURRY, SHORTEST_RANGE_SECONDS) for span in _ranges(slow)
            ]


DURATION = re.compile(r"\b([0-9]+[smhd])\b")


def _rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in deployed_groups(path) for rule in group["rules"]]


def _timeless(rule: dict[str, Any]) -> dict[str, Any]:
    return {**rule, "expr": DURATION.sub("TIME", rule["expr"]), "for": "for" in rule}


def _ranges(rule: dict[str, Any]) -> list[int]:
    return [seconds(duration) for duration in DURATION.findall(rule["expr"])]


def _held_seconds(rule: dict[str, Any]) -> int:
    return seconds(rule["for"]) if "for" in rule else 0
