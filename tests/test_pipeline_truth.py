"""Recordings with known truth, from the file to the counters that Prometheus sees."""

import functools
import gzip
import json
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from exporter.replay import replay_once
from tests.running import Metrics

DATA = Path(__file__).parent / "data"
TRUTH = json.loads((DATA / "recordings" / "truth.json").read_text())
H200 = DATA / "h200"

Keep = Callable[[dict[str, object]], bool]


def without(*types: str) -> Keep:
    return lambda line: line["type"] not in types


EVERYTHING = without()
WITH_LEVELS: dict[str, Keep] = {
    "everything": EVERYTHING,
    "power and residency": without("gpm"),
    "gpm and residency": without("power"),
}
WITHOUT_LEVELS: dict[str, Keep] = {
    "no levels": without("levels"),
    "no levels, power and residency": without("levels", "gpm"),
    "no levels, gpm and residency": without("levels", "power"),
}


@functools.cache
def replayed(path: Path, keep: Keep) -> Metrics:
    """The metrics at the end of the lines kept."""
    with gzip.open(path, "rt") as lines, tempfile.NamedTemporaryFile("w", suffix=".jsonl") as kept:
        kept.writelines(line for line in lines if keep(json.loads(line)))
        kept.flush()
        return Metrics.parse(replay_once(Path(kept.name)))


def share(metrics: Metrics, pp_rank: int, state: str) -> float:
    """A stage's share of its observed time in a state, by all methods."""
    stage = {"pp_rank": str(pp_rank)}
    return metrics.total("stage_seconds_total", state=state, **stage) / metrics.total(
        "stage_seconds_total", **stage
    )


def methods(metrics: Metrics) -> set[str]:
    """The methods that hold most of a stage's time."""
    names = metrics.label_values("stage_seconds_total", "method")
    total = metrics.total("stage_seconds_total")
    return {m for m in names if metrics.total("stage_seconds_total", method=m) > 0.1 * total}


def ranks(name: str) -> Iterable[tuple[int, float, float]]:
    return zip(range(8), TRUTH[name]["busy"], TRUTH[name]["waiting"], strict=True)


@pytest.mark.parametrize("evidence", WITH_LEVELS)
@pytest.mark.parametrize("name", TRUTH)
def test_working_and_waiting_shares_are_the_true_ones(name: str, evidence: str) -> None:
    metrics = replayed(DATA / "recordings" / f"{name}.jsonl.gz", WITH_LEVELS[evidence])
    bound = 0.02 if evidence == "everything" else 0.03
    for pp_rank, working, waiting in ranks(name):
        assert share(metrics, pp_rank, "working") == pytest.approx(working, abs=bound)
        assert share(metrics, pp_rank, "waiting") == pytest.approx(waiting, abs=0.03)
    occupancy = metrics.total("stage_seconds_total", state="working") / metrics.total(
        "stage_seconds_total"
    )
    assert occupancy == pytest.approx(TRUTH[name]["occupancy"], abs=bound)


@pytest.mark.parametrize("evidence", WITHOUT_LEVELS)
@pytest.mark.parametrize("name", TRUTH)
def test_without_known_levels_a_share_is_true_or_called_an_upper_bound(
    name: str, evidence: str
) -> None:
    path = DATA / "recordings" / f"{name}.jsonl.gz"
    metrics = replayed(path, WITHOUT_LEVELS[evidence])
    for pp_rank, working, _ in ranks(name):
        stage = {"pp_rank": str(pp_rank)}
        bound = metrics.total("stage_seconds_total", method="residency", **stage)
        if bound < 0.1 * metrics.total("stage_seconds_total", **stage):
            assert share(metrics, pp_rank, "working") == pytest.approx(working, abs=0.03)
        else:
            assert share(metrics, pp_rank, "working") >= working - 0.03


@pytest.mark.parametrize("name", TRUTH)
def test_effective_microbatches_are_the_true_ones(name: str) -> None:
    metrics = replayed(DATA / "recordings" / f"{name}.jsonl.gz", EVERYTHING)
    assert metrics.value("effective_microbatches") == pytest.approx(
        TRUTH[name]["effective_microbatches"], rel=0.1
    )
    assert metrics.value("stages") == 8


@pytest.mark.parametrize("name", TRUTH)
def test_the_number_of_active_stages_has_the_mean_of_the_shares(name: str) -> None:
    metrics = replayed(DATA / "recordings" / f"{name}.jsonl.gz", EVERYTHING)
    seconds = [metrics.value("active_stages_seconds_total", stages=str(k)) or 0 for k in range(9)]
    observed = metrics.total("stage_seconds_total", pp_rank="0")
    assert sum(seconds) == pytest.approx(observed, rel=0.01)
    mean = sum(k * s for k, s in enumerate(seconds)) / sum(seconds)
    assert mean == pytest.approx(8 * TRUTH[name]["occupancy"], abs=0.16)


def test_on_a_real_card_with_nobody_to_wait_for_work_is_residency() -> None:
    metrics = replayed(H200 / "sglang-graphs.jsonl.gz", EVERYTHING)
    resident = metrics.total("gpu_resident_seconds_total") / metrics.total(
        "gpu_observed_seconds_total", signal="utilization"
    )
    assert share(metrics, 0, "working") == pytest.approx(resident, abs=0.03)
    assert metrics.value("stage_bubble_seconds_total") > 10, "the compile stall of 11 s"


def test_a_server_without_graphs_works_a_fifth_of_the_time_it_claims() -> None:
    metrics = replayed(H200 / "sglang-graph-off.jsonl.gz", EVERYTHING)
    assert share(metrics, 0, "working") < 0.25
    assert metrics.value("stage_bubble_seconds_total") > 51, "the compile stall of 51 s"
