"""Interval arithmetic: what the stages of a pipeline did together in one second of the grid.

GPU seconds → stage seconds (working = the hardest-working tensor-parallel rank, waiting = the
longest-resident rank's residency less that, idle = the rest) → how many stages worked at a time.
Time that one rank of a stage does not cover is unobserved for the stage. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from exporter.pipeline.grid import CELL_SECONDS, CELLS_PER_SECOND, METHODS, GpuSecond
from exporter.records import Method

TELLS_WAITING = frozenset({Method.GPM, Method.POWER})
"""Methods that tell waiting from working; by the others working is an upper bound."""

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class MethodTime:
    """Seconds of one stage known by one method; `waiting` is `None` where it cannot be told."""

    observed: float
    working: float
    waiting: float | None


@dataclass(frozen=True, slots=True)
class StageSecond:
    """What one stage did in (a part of) one second.

    `observed`, `working` and `waiting` are seconds by cell, `methods` what each cell is known by
    (an index of `METHODS`; -1 where nothing is seen); `rank_ratios` the mean working share of each
    tensor-parallel rank; `length_seconds` the mean length of the windows it was seen through.
    """

    observed: Sequence[float]
    working: Sequence[float]
    waiting: Sequence[float]
    methods: Sequence[int]
    times: Mapping[Method, MethodTime]
    rank_ratios: tuple[float, ...]
    length_seconds: float

    @property
    def observed_seconds(self) -> float:
        """Time in which every rank of the stage was seen."""
        return sum(time.observed for time in self.times.values())

    @property
    def working_seconds(self) -> float:
        """Of that, time worked."""
        return sum(time.working for time in self.times.values())


def combine_ranks(ranks: Sequence[GpuSecond], first: int, stop: int) -> StageSecond | None:
    """The second of a stage from those of its ranks, over the cells from `first` before `stop`.

    Which rank works hardest is decided over the second, not cell by cell: the windows of two GPUs
    are out of phase, and the highest of two shifted (or noisy) copies of the same rhythm is more
    than either. The ranks of a tensor-parallel group work in step, so nothing is lost by it.

    Returns:
        `None` if no time is seen on all ranks.
    """
    observed = _common_time(ranks, first, stop)
    cells = _cells_by_method(ranks, observed)
    if not cells:
        return None
    working = [0.0] * CELLS_PER_SECOND
    waiting = [0.0] * CELLS_PER_SECOND
    methods = [-1] * CELLS_PER_SECOND
    times = {}
    rank_seconds = [0.0] * len(ranks)
    for index in sorted(cells):
        method = METHODS[index]
        parts = [_rank_part(rank, observed, cells[index], method) for rank in ranks]
        worked = [sum(part) for part, _ in parts]
        leader = worked.index(max(worked))
        resident = [sum(own) + sum(waits) for own, waits in parts]
        longest = parts[resident.index(max(resident))]
        for cell, works, own, waits in zip(cells[index], parts[leader][0], *longest, strict=True):
            working[cell], waiting[cell] = works, max(own + waits - works, 0.0)
            methods[cell] = index
        times[method] = MethodTime(
            sum(observed[cell] for cell in cells[index]),
            worked[leader],
            max(max(resident) - worked[leader], 0.0) if method in TELLS_WAITING else None,
        )
        rank_seconds = [total + own for total, own in zip(rank_seconds, worked, strict=True)]
    seen = sum(observed)
    return StageSecond(
        observed,
        working,
        waiting,
        methods,
        times,
        tuple(seconds / seen for seconds in rank_seconds),
        max(rank.length_seconds / sum(rank.covered) for rank in ranks),
    )


def _cells_by_method(ranks: Sequence[GpuSecond], observed: Sequence[float]) -> dict[int, list[int]]:
    """The cells in which time is seen, by the worst method of the ranks there."""
    worst = ranks[0].methods
    for rank in ranks[1:]:
        worst = [max(pair) for pair in zip(worst, rank.methods, strict=True)]
    cells: dict[int, list[int]] = {}
    for cell, seconds in enumerate(observed):
        if seconds > 0.0:
            cells.setdefault(worst[cell], []).append(cell)
    return cells


def _common_time(ranks: Sequence[GpuSecond], first: int, stop: int) -> list[float]:
    if len(ranks) == 1:
        covered = ranks[0].covered
    else:
        covered = [min(times) for times in zip(*(rank.covered for rank in ranks), strict=True)]
    if first == 0 and stop == CELLS_PER_SECOND:
        return covered
    inside = range(first, stop)
    return [seconds if cell in inside else 0.0 for cell, seconds in enumerate(covered)]


def _rank_part(
    rank: GpuSecond, observed: Sequence[float], cells: Sequence[int], method: Method
) -> tuple[list[float], list[float]]:
    """Seconds a rank worked in each of the cells, and seconds it waited in each.

    Once a stage is known by residency only, all its ranks are: working = resident.
    """
    covered, working, waiting = rank.covered, rank.working, rank.waiting
    if observed is covered:
        worked = [working[cell] for cell in cells]
        waited = [waiting[cell] for cell in cells]
    else:
        scale = [observed[cell] / covered[cell] for cell in cells]
        worked = [working[cell] * factor for cell, factor in zip(cells, scale, strict=True)]
        waited = [waiting[cell] * factor for cell, factor in zip(cells, scale, strict=True)]
    if method is Method.RESIDENCY:
        resident = [work + wait for work, wait in zip(worked, waited, strict=True)]
        return resident, [0.0] * len(cells)
    return worked, waited


# --- the stages together -----------------------------------------------------------------------


def active_stages(shares: Iterable[float]) -> list[float]:
    """Probability that 0, 1, … stages work at an instant, given each one's share of the window.

    The Poisson-binomial distribution: stages taken as independent inside the window. Its mean is
    the sum of the shares whatever the truth; its shape is exact only for windows shorter than a
    micro-batch.
    """
    chances = [1.0]
    for share in shares:
        if share in (0.0, 1.0):  # as in most cells: nothing to multiply
            chances = [0.0, *chances] if share else [*chances, 0.0]
            continue
        rest = 1.0 - share
        chances = [
            stay * rest + step * share
            for stay, step in zip([*chances, 0.0], [0.0, *chances], strict=True)
        ]
    return chances


@dataclass(slots=True)
class Together:
    """Time in which all stages were seen, summed over cells.

    With x the share of a stage in a cell and k = Σx: `active_seconds` is the time with 0, 1, …
    stages working, `k_seconds` = ∫k, `k_square_seconds` = ∫k², `spread_seconds` = ∫Σx(1-x).
    """

    active_seconds: list[float]
    observed_seconds: float = 0.0
    k_seconds: float = 0.0
    k_square_seconds: float = 0.0
    spread_seconds: float = 0.0
    stage_seconds: list[float] = field(default_factory=list)
    square_seconds: list[float] = field(default_factory=list)
    """By stage: ∫x and ∫x²."""

    @classmethod
    def of(cls, stages: int) -> Together:
        """Nothing yet, of that many stages."""
        return cls(
            [0.0] * (stages + 1), stage_seconds=[0.0] * stages, square_seconds=[0.0] * stages
        )

    def add(self, other: Together) -> None:
        """Adds another stretch of time of the same stages."""
        self.observed_seconds += other.observed_seconds
        self.k_seconds += other.k_seconds
        self.k_square_seconds += other.k_square_seconds
        self.spread_seconds += other.spread_seconds
        for mine, others in (
            (self.active_seconds, other.active_seconds),
            (self.stage_seconds, other.stage_seconds),
            (self.square_seconds, other.square_seconds),
        ):
            mine[:] = [a + b for a, b in zip(mine, others, strict=True)]


def join_stages(stages: Sequence[StageSecond]) -> Together:
    """What all stages of a pipeline did at the same time in one second."""
    total = Together.of(len(stages))
    shares: tuple[float, ...] | None = None
    weight = 0.0
    for cell in range(CELLS_PER_SECOND):
        seen = [stage.observed[cell] for stage in stages]
        if min(seen) <= 0.0:
            continue
        now = tuple(
            min(stage.working[cell] / seconds, 1.0)
            for stage, seconds in zip(stages, seen, strict=True)
        )
        if now != shares:  # windows longer than a cell: the same shares many times over
            _add_stretch(total, shares, weight)
            shares, weight = now, 0.0
        weight += min(seen)
    _add_stretch(total, shares, weight)
    return total


def _add_stretch(total: Together, shares: tuple[float, ...] | None, seconds: float) -> None:
    if shares is None:
        return
    k = sum(shares)
    squares = [share * share for share in shares]
    total.observed_seconds += seconds
    total.k_seconds += k * seconds
    total.k_square_seconds += k * k * seconds
    total.spread_seconds += (k - sum(squares)) * seconds
    for sums, values in (
        (total.active_seconds, active_stages(shares)),
        (total.stage_seconds, shares),
        (total.square_seconds, squares),
    ):
        sums[:] = [have + value * seconds for have, value in zip(sums, values, strict=True)]


def working_span(stages: Iterable[StageSecond], second: int, least_ratio: float) -> Span | None:
    """From the first to the last cell in which any stage worked at least that share of it."""
    first, last = CELLS_PER_SECOND, -1
    for stage in stages:
        busy = [
            cell
            for cell, (worked, seen) in enumerate(zip(stage.working, stage.observed, strict=True))
            if worked > 0.0 and worked >= least_ratio * seen
        ]
        if busy:
            first, last = min(first, busy[0]), max(last, busy[-1])
    return None if last < 0 else (second + first * CELL_SECONDS, second + (last + 1) * CELL_SECONDS)


def inside(stage: StageSecond, second: int, spans: Sequence[Span]) -> tuple[float, float]:
    """Seconds observed and seconds worked of a stage inside the spans (apart, in time order)."""
    if any(start <= second and end >= second + 1 for start, end in spans):
        return stage.observed_seconds, stage.working_seconds
    observed = working = 0.0
    for start, end in spans:
        for cell in range(CELLS_PER_SECOND):
            left = second + cell * CELL_SECONDS
            share = (min(end, left + CELL_SECONDS) - max(start, left)) / CELL_SECONDS
            if share > 0.0:
                observed += min(share, 1.0) * stage.observed[cell]
                working += min(share, 1.0) * stage.working[cell]
    return observed, working
