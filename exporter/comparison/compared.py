"""Two runs → what the candidate gives of what the baseline gave, figure by figure. Pure.

Figures are held against each other only where they are of the same kind of load and known by the
same means; otherwise both are told and no ratio is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from exporter.comparison.points import Point, at_shared_streams, in_windows, loads_differ
from exporter.comparison.run import LATENCIES, PERCENTILES, Run
from exporter.records import FactValue

Pair = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One figure of both sides.

    Attributes:
        sides: Of the baseline and of the candidate; `None`: not known.
        compared: Whether they may be held against each other; `None`: they are only told.
        is_share: A share of time, compared by its difference; others by their ratio.
        applies: Whether the side has such a figure: a single stage has no bubbles.
    """

    sides: Pair
    compared: bool | None = True
    is_share: bool = False
    applies: tuple[bool, bool] = (True, True)

    @property
    def baseline(self) -> float | None:
        """Of the baseline; `None`: not known."""
        return self.sides[0]

    @property
    def candidate(self) -> float | None:
        """Of the candidate; `None`: not known."""
        return self.sides[1]

    @property
    def ratio(self) -> float | None:
        """Candidate over baseline; `None` where that says nothing."""
        if not self.compared or self.is_share or self.candidate is None or not self.baseline:
            return None
        return self.candidate / self.baseline

    @property
    def difference(self) -> float | None:
        """Candidate less baseline, of shares; `None` where that says nothing."""
        if not self.compared or not self.is_share:
            return None
        if self.candidate is None or self.baseline is None:
            return None
        return self.candidate - self.baseline


@dataclass(frozen=True, slots=True)
class ChangedFact:
    """A flag of the server, or its version, that is not known to be the same on both sides.

    `None` is a value (left to SGLang); what a side does not know stands in `unknown`.
    """

    name: str
    baseline: FactValue
    candidate: FactValue
    unknown: str | None = None
    """`baseline` or `candidate`."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate against a baseline.

    Attributes:
        points: Where the throughput of both is taken: in the windows, or at the highest number of
            streams that loads of both had.
        loads_differ: The points are known to be of different loads.
        windows_differ: So are the windows, of which all figures of GPUs and log are.
        quantities: By name, with its unit.
    """

    baseline: Run
    candidate: Run
    points: tuple[Point, Point]
    loads_differ: bool
    windows_differ: bool
    quantities: dict[str, Quantity]
    changed_facts: tuple[ChangedFact, ...]

    @property
    def throughput_ratio(self) -> float | None:
        """Output of the candidate over the baseline's; `None`: it cannot be told."""
        return self.quantities["output_tokens_per_second"].ratio

    @property
    def names(self) -> tuple[str, str]:
        """What to call the sides: their layouts, where these tell them apart."""
        first, second = self.baseline.layout, self.candidate.layout
        if first is None or second is None or first == second:
            return "the baseline", "the candidate"
        return first, second


def compare(baseline: Run, candidate: Run) -> Comparison:
    """Holds one run against another."""
    windows_differ = loads_differ(baseline, candidate)
    shared = at_shared_streams(baseline, candidate) if windows_differ else None
    points = shared or in_windows(baseline, candidate)
    alike = shared is not None or not windows_differ
    quantities = {
        **_throughputs(baseline, candidate, points, compared=alike),
        **_latencies(points, compared=alike),
        **_stages(baseline, candidate, compared=not windows_differ),
        **_energies(baseline, candidate, compared=not windows_differ),
    }
    return Comparison(
        baseline,
        candidate,
        points,
        not alike,
        windows_differ,
        quantities,
        tuple(_changed_facts(baseline, candidate)),
    )


def _throughputs(
    baseline: Run, candidate: Run, points: tuple[Point, Point], *, compared: bool
) -> dict[str, Quantity]:
    first, second = points
    gains = (_batching_gain(baseline, first), _batching_gain(candidate, second))
    scalings = (_scaling(baseline, gains[0]), _scaling(candidate, gains[1]))
    applies = (baseline.may_be_pipeline, candidate.may_be_pipeline)
    return {
        "output_tokens_per_second": Quantity(
            (first.tokens_per_second, second.tokens_per_second), compared
        ),
        "stream_tokens_per_second": Quantity(
            (_of_one_stream(first), _of_one_stream(second)), compared
        ),
        "single_stream_tokens_per_second": Quantity(
            (baseline.single_stream, candidate.single_stream)
        ),
        "batching_gain_ratio": Quantity(gains, compared),
        "scaling_ratio": Quantity(scalings, compared, applies=applies),
        "streams": Quantity((first.streams, second.streams), None),
        **{
            name: Quantity((_asked(first, name), _asked(second, name)), None)
            for name in ("requests_per_second", "prompt_tokens", "max_tokens")
        },
    }


def _of_one_stream(point: Point) -> float | None:
    rate = point.tokens_per_second
    return rate / point.streams if rate is not None and point.streams else None


def _batching_gain(run: Run, point: Point) -> float | None:
    """X_C / X_1: what many streams together give of one alone."""
    rate, alone = point.tokens_per_second, run.single_stream
    if rate is None or not alone or point.streams in {None, 1}:
        return None
    return rate / alone


def _scaling(run: Run, gain: float | None) -> float | None:
    """F = X_C / (P X_1) of a pipeline: about 1 is full without a gain from batching."""
    if gain is None or run.pp_size is None or run.pp_size == 1:
        return None
    return gain / run.pp_size


def _asked(point: Point, name: str) -> float | None:
    load = point.load
    if load is None:
        return None
    asked = {
        "requests_per_second": load.rate_per_second,
        "prompt_tokens": load.prompt_tokens,
        "max_tokens": load.max_tokens,
    }
    return asked[name]


def _latencies(points: tuple[Point, Point], *, compared: bool) -> dict[str, Quantity]:
    names = [f"{latency}_{percentile}" for latency in LATENCIES for percentile in PERCENTILES]
    first, second = ({} if each.load is None else each.load.latencies for each in points)
    return {name: Quantity((first.get(name), second.get(name)), compared) for name in names}


def _stages(baseline: Run, candidate: Run, *, compared: bool) -> dict[str, Quantity]:
    """What the stages do in the windows; a bound on work is not held against anything."""
    applies = (baseline.may_be_pipeline, candidate.may_be_pipeline)
    working = (baseline.occupancy_ratio, candidate.occupancy_ratio)
    most = (baseline.occupancy_at_most_ratio, candidate.occupancy_at_most_ratio)
    slots = (baseline.effective_microbatches, candidate.effective_microbatches)
    skews = (baseline.skew_ratio, candidate.skew_ratio)
    bubbles = (_bubble(baseline), _bubble(candidate))
    return {
        "occupancy_ratio": Quantity(working, compared, is_share=True),
        "occupancy_at_most_ratio": Quantity(
            most, compared=None, applies=(not baseline.is_measured, not candidate.is_measured)
        ),
        "bubble_ratio": Quantity(bubbles, compared, is_share=True, applies=applies),
        "effective_microbatches": Quantity(slots, compared, applies=applies),
        "stage_skew_ratio": Quantity(skews, compared, is_share=True, applies=applies),
    }


def _bubble(run: Run) -> float | None:
    if run.occupancy_ratio is None or not run.may_be_pipeline:
        return None
    return 1.0 - run.occupancy_ratio


def _energies(baseline: Run, candidate: Run, *, compared: bool) -> dict[str, Quantity]:
    tokens = (baseline.joules_per_token, candidate.joules_per_token)
    return {
        "gpus": Quantity((baseline.gpus, candidate.gpus), None),
        "power_watts": Quantity((baseline.watts, candidate.watts), compared),
        "energy_joules_per_token": Quantity(tokens, compared),
    }


def _changed_facts(baseline: Run, candidate: Run) -> Iterator[ChangedFact]:
    """By name; those first that both sides know."""
    before, after = baseline.facts, candidate.facts
    for name in sorted(before.keys() & after.keys()):
        if before[name] != after[name]:
            yield ChangedFact(name, before[name], after[name])
    for name in sorted(before.keys() - after.keys()):
        yield ChangedFact(name, before[name], None, "candidate")
    for name in sorted(after.keys() - before.keys()):
        yield ChangedFact(name, None, after[name], "baseline")
