"""Two exporters, each with half of a pipeline's stages, and the recording rules: one pipeline.

A simulated scenario is recorded once. One exporter replays all of it; two others replay what the
hosts of stages 0 to 3 and 4 to 7 would have seen: their own cards, processes and log lines. A
Prometheus scrapes the three, and its rules say the same of the halves together as of the whole.

One thing halves cannot know. Effective micro-batches need evidence of how many slots are filled.
Where a load of known size is driven, both halves have it, and so have they where the log tells by
itself; the mean number of working stages is seen by one exporter of all stages only. Without other
evidence, halves say nothing, and the rule does not make anything up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from exporter.simulator.scenarios import STAGES
from tests import prometheus_server
from tests.hurried_rules import DEPLOYED
from tests.prometheus_server import Prometheus, running_prometheus
from tests.running import RunningExporter
from tests.simulated_recording import write_recording

RECORDED_SECONDS = 150.0
SCRAPED_SECONDS = 55
"""The rules' 30 s begin when levels of power are learned and what was held for them is counted."""
TOLERANCE = 0.02
"""The replays of a scenario start at about the same time: their windows of 30 s differ a little."""
PATIENCE_SECONDS = 60.0

SHARES = {
    "occupancy": "pipeline:sglang_pipeline_occupancy:ratio_rate30s",
    "bubble": "pipeline:sglang_pipeline_bubble:ratio_rate30s",
    "skew": "pipeline:sglang_pipeline_stage_skew:ratio_rate30s",
    "balance": "pipeline:sglang_pipeline_balance:ratio_rate30s",
}
SLOTS = {
    "slots": "pipeline:sglang_pipeline_microbatch_slots:max",
    "observable slots": "pipeline:sglang_pipeline_microbatch_slots_observable:max",
    "effective micro-batches": "pipeline:sglang_pipeline_effective_microbatches:max",
    "stages": "pipeline:sglang_pipeline_stages:complete_rate30s",
}
WHOLE, HALVES = "whole", "halves"
OF_UNKNOWN_LOAD = "thundering_herd"
SCENARIOS = ("stage_imbalance", "uneven_split")
"""Hosts that work unequally, and slots that are filled unequally."""

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        prometheus_server.why_not() is not None, reason=str(prometheus_server.why_not())
    ),
]


@dataclass(frozen=True)
class Host:
    """What of a pipeline one exporter sees; `part` names the server, as all its hosts do."""

    name: str
    part: str
    stages: range
    facts: dict[str, int]

    def sees(self, record: dict[str, Any], server: str, pids: dict[int, int]) -> dict[str, Any]:
        """The record as this host would have it; empty if it has no such thing.

        Args:
            record: A line of a recording of the whole.
            server: The name to give the server.
            pids: Process → stage.
        """
        match record["type"]:
            case "server":
                return {**record, "server": server, "facts": {**record["facts"], **self.facts}}
            case "map":
                own = [rank for rank in record["stages"] if rank["pp_rank"] in self.stages]
                return {**record, "server": server, "stages": own}
            case "log":
                return {**record, "server": server} if pids[record["pid"]] in self.stages else {}
            case "header" | "load":
                return record
            case _:
                return record if record["gpu"] in self.stages else {}


HOSTS = (
    Host("all", WHOLE, range(STAGES), {}),
    Host("first", HALVES, range(STAGES // 2), {"nnodes": 2, "node_rank": 0}),
    Host("second", HALVES, range(STAGES // 2, STAGES), {"nnodes": 2, "node_rank": 1}),
)


def write_seen(scenario: str, folder: Path) -> list[Path]:
    """Records a scenario, and writes what the one host sees of it and what each of the two."""
    recording = folder / f"{scenario}.jsonl"
    write_recording(scenario, RECORDED_SECONDS, recording)
    records = [json.loads(line) for line in recording.read_text().split("\n") if line]
    if scenario == OF_UNKNOWN_LOAD:
        records = [record for record in records if record["type"] != "load"]
    [ranks] = [record["stages"] for record in records if record["type"] == "map"]
    pids = {rank["pid"]: rank["pp_rank"] for rank in ranks}
    paths = []
    for host in HOSTS:
        seen = (host.sees(record, f"{scenario}-{host.part}", pids) for record in records)
        paths.append(folder / f"{scenario}-{host.name}.jsonl")
        paths[-1].write_text("".join(json.dumps(record) + "\n" for record in seen if record))
    return paths


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("hosts")
    recordings = [
        path for name in (*SCENARIOS, OF_UNKNOWN_LOAD) for path in write_seen(name, folder)
    ]
    with ExitStack() as stack:

        def replayed(recording: Path) -> tuple[str, int]:
            own = folder / recording.stem
            own.mkdir()
            replay = stack.enter_context(RunningExporter(["replay", str(recording)], own))
            return f"127.0.0.1:{replay.port}", 1

        names = [recording.stem for recording in recordings]
        with ThreadPoolExecutor(len(HOSTS)) as at_once:
            jobs = dict(zip(names, at_once.map(replayed, recordings), strict=True))
        rules = [DEPLOYED / "recording.rules.yaml"]
        running = stack.enter_context(running_prometheus(folder, jobs, rules))

        def settled() -> bool:
            scrapes = [count for _, count in running.query("count_over_time(up[1h])")]
            return min(scrapes, default=0.0) >= SCRAPED_SECONDS

        running.wait_until(settled, SCRAPED_SECONDS + PATIENCE_SECONDS)
        yield running


def of_whole_and_halves(prometheus: Prometheus, scenario: str, rule: str) -> tuple[float, float]:
    """A figure of the one exporter and of the two, at one instant."""
    found: dict[str, float] = {}

    def both_are_there() -> bool:  # a scrape may fail on a busy machine
        found.clear()
        found.update({labels["server"]: value for labels, value in prometheus.query(rule)})
        return {f"{scenario}-{WHOLE}", f"{scenario}-{HALVES}"} <= found.keys()

    prometheus.wait_until(both_are_there, PATIENCE_SECONDS)
    return found[f"{scenario}-{WHOLE}"], found[f"{scenario}-{HALVES}"]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("scenario", [*SCENARIOS, OF_UNKNOWN_LOAD])
def test_a_share_is_that_of_one_exporter(prometheus: Prometheus, scenario: str, share: str) -> None:
    whole, halves = of_whole_and_halves(prometheus, scenario, SHARES[share])
    assert halves == pytest.approx(whole, abs=TOLERANCE)


@pytest.mark.parametrize("figure", SLOTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_figures_of_slots_are_taken_once_and_not_summed(
    prometheus: Prometheus, scenario: str, figure: str
) -> None:
    whole, halves = of_whole_and_halves(prometheus, scenario, SLOTS[figure])
    assert halves == pytest.approx(whole, abs=TOLERANCE)


def test_halves_do_not_say_how_many_slots_are_filled_where_only_all_stages_could_tell(
    prometheus: Prometheus,
) -> None:
    found = {
        labels["server"]: value
        for labels, value in prometheus.query(SLOTS["effective micro-batches"])
        if labels["server"].startswith(OF_UNKNOWN_LOAD)
    }
    assert found == {f"{OF_UNKNOWN_LOAD}-{WHOLE}": pytest.approx(1.0, abs=TOLERANCE)}


def test_the_halves_alone_differ_from_the_whole(prometheus: Prometheus) -> None:
    """So that the figures above are those of joined stages: half a pipeline shows no skew."""
    own = {
        labels["job"]: value
        for labels, value in prometheus.query(
            "last_over_time(sglang_pipeline_stage_skew_ratio[30s])"
        )
    }
    assert own["stage_imbalance-first"] < 0.1 < own["stage_imbalance-all"]
