"""Servers of every verdict with costs, sizes and rhythms drawn at random from a seed.

Stands on `exporter.simulator` for what a server does; what is drawn stays inside its class: the
truth of a class is what the numbers here say, not what a diagnosis finds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from exporter.diagnosis.findings import Missing, Verdict
from exporter.diagnosis.stage_hypotheses import slowest_stage
from exporter.diagnosis.verdict import Diagnosis
from exporter.simulator.scenarios import (
    SCENARIOS,
    STAGES,
    ClosedLoop,
    Cost,
    GpuFault,
    Scenario,
    Waves,
    Window,
)

SECONDS = 45.0
INTERVALS = (11, 37, 41)
"""Each hides no slot of eight."""

ONE_PREFILL = 1 << 20
"""Tokens of a chunk that holds any burst: a longer one would spill into the next slots, and the
split would not be the one drawn."""

Draw = Callable[[random.Random], Scenario]


def server(verdict: str, seed: int) -> Scenario:
    """A server of that class."""
    return CLASSES[verdict](random.Random(f"{verdict} {seed}"))


def accepted(verdict: str) -> frozenset[str]:
    """What a diagnosis may call it."""
    return _ACCEPTED.get(verdict, frozenset({verdict}))


_ACCEPTED = {
    # No verdicts, but scenarios whose verdict follows from the contract's words.
    "gpu_lost": frozenset({"gpu_fault"}),  # lost cards are one of its kinds
    "aliased": frozenset({"uneven_split"}),  # 12, 6, 4, 3, 3, 2, 1, 1: m_eff 4.7 of 8
    "idle": frozenset({"cannot_tell"}),  # no request, nothing to judge
    # The contract counts throttling under stage_imbalance, and where throttle reasons were not
    # read, a card that is held down looks like a stage with more layers.
    "gpu_fault": frozenset({"gpu_fault", "stage_imbalance"}),
}


def is_right(diagnosis: Diagnosis, scenario: Scenario) -> bool:
    """Whether that is wrong with it, and the stage or card at fault is the one that is named.

    Calling a throttled card an imbalance is right only with the word that its throttle reasons,
    which nobody read, would tell.
    """
    if diagnosis.verdict not in accepted(scenario.name):
        return False
    imbalance = diagnosis.verdict is Verdict.STAGE_IMBALANCE
    unread = scenario.name == "gpu_fault" and imbalance
    told = Missing.THROTTLING in diagnosis.missing
    return (told or not unread) and _names_the_stage(diagnosis, scenario)


def _names_the_stage(diagnosis: Diagnosis, scenario: Scenario) -> bool:
    """Of the verdicts that speak of one stage."""
    figures, factors = diagnosis.figures, scenario.cost.stage_factors
    if scenario.fault is not None and scenario.fault.lost is not None:
        lost = [stage.pp_rank for stage in figures.stages if stage.lost_seconds]
        return lost == [scenario.fault.gpu]
    if max(factors) == min(factors):
        return True
    slow = slowest_stage(figures)
    named = figures.likeness_leader if slow is None else slow.pp_rank
    return named == factors.index(max(factors))


def _cost(rng: random.Random, batch: int, *, dense: float | None = None) -> Cost:
    """A pass of that many requests takes 4 to 90 ms; `dense` of it whatever their number."""
    seconds = 10 ** rng.uniform(-2.4, -1.05)
    share = rng.uniform(0.05, 0.6) if dense is None else dense
    return Cost(
        decode_base_seconds=share * seconds,
        decode_request_seconds=(1.0 - share) * seconds / batch,
        prefill_base_seconds=rng.uniform(0.2, 0.8) * seconds,
        prefill_token_seconds=seconds * 10 ** rng.uniform(-3.6, -3.0),
        jitter_ratio=rng.uniform(0.01, 0.06),
    )


def _pass_seconds(cost: Cost, batch: int) -> float:
    return cost.decode_seconds(batch)


def _loop(rng: random.Random, requests: int) -> ClosedLoop:
    return ClosedLoop(
        requests,
        prompt_tokens=rng.randrange(50, 400),
        output_tokens=rng.randrange(300, 1500),
        think_seconds=0.004,
    )


def _even(rng: random.Random, name: str, cost: Callable[[Cost], Cost] = lambda c: c) -> Scenario:
    """Slots filled evenly up to their cap."""
    batch = rng.randrange(2, 9)
    return Scenario(
        name,
        "",
        loads=(_loop(rng, STAGES * batch),),
        cost=cost(_cost(rng, batch)),
        pp_max_micro_batch_size=batch,
        decode_log_interval=rng.choice(INTERVALS),
    )


def _factors(stage: int, factor: float) -> tuple[float, ...]:
    return tuple(factor if each == stage else 1.0 for each in range(STAGES))


def _healthy(rng: random.Random) -> Scenario:
    return _even(rng, "healthy")


def _herd(rng: random.Random) -> Scenario:
    requests = rng.randrange(8, 65)
    groups = (requests,) if rng.random() < 0.6 else (requests, rng.randrange(1, requests + 1))
    return Scenario(
        "thundering_herd",
        "",
        loads=(Waves(groups, prompt_tokens=rng.randrange(50, 300), output_tokens=8192),),
        cost=_cost(rng, requests),
        pp_max_micro_batch_size=256,
        chunked_prefill_size=ONE_PREFILL,
        decode_log_interval=rng.choice(INTERVALS),
    )


def _uneven(rng: random.Random) -> Scenario:
    while True:
        groups = tuple(max(1, round(14 * rng.random() ** 2.5)) for _ in range(rng.randrange(4, 9)))
        effective = sum(groups) ** 2 / sum(size * size for size in groups)
        if 2.3 < effective < 5.8 and sum(groups) >= 12:
            break
    return Scenario(
        "uneven_split",
        "",
        loads=(Waves(groups, prompt_tokens=rng.randrange(50, 300), output_tokens=8192),),
        cost=_cost(rng, max(groups), dense=rng.uniform(0.02, 0.3)),
        pp_max_micro_batch_size=64,
        chunked_prefill_size=ONE_PREFILL,
        decode_log_interval=rng.choice(INTERVALS),
    )


def _over(rng: random.Random) -> Scenario:
    depth, batch = rng.randrange(3, 9), rng.randrange(1, 4)
    return Scenario(
        "over_split",
        "",
        loads=(_loop(rng, (STAGES + depth) * batch),),
        cost=_cost(rng, batch, dense=rng.uniform(0.85, 0.98)),
        pp_async_batch_depth=depth,
        pp_max_micro_batch_size=batch,
        decode_log_interval=rng.choice((37, 41)),
    )


def _imbalance(rng: random.Random) -> Scenario:
    stage = STAGES - 1 if rng.random() < 0.5 else rng.randrange(STAGES)
    factors = _factors(stage, rng.uniform(1.45, 2.5))
    return _even(rng, "stage_imbalance", lambda cost: replace(cost, stage_factors=factors))


def _stall(rng: random.Random) -> Scenario:
    period = rng.uniform(2.5, 9.0)
    stall = Window(rng.uniform(1.0, 3.0), rng.uniform(0.3, 0.6) * period, period)
    return replace(_even(rng, "global_stall"), stall=stall)


def _host(rng: random.Random) -> Scenario:
    drawn = _even(rng, "host_bound")
    seconds = _pass_seconds(drawn.cost, drawn.pp_max_micro_batch_size)
    return replace(drawn, cost=replace(drawn.cost, host_seconds=seconds * rng.uniform(0.6, 2.0)))


def _prefill(rng: random.Random) -> Scenario:
    base = SCENARIOS["prefill_interference"]
    few = ClosedLoop(
        concurrency=rng.randrange(3, 7),
        prompt_tokens=rng.randrange(10_000, 20_000),
        output_tokens=rng.randrange(8, 32),
        think_seconds=rng.uniform(0.5, 2.0),
    )
    return replace(
        base,
        loads=(ClosedLoop(concurrency=32 - few.concurrency), few),
        cost=replace(base.cost, prefill_token_seconds=rng.uniform(1.0e-5, 2.0e-5)),
        decode_log_interval=rng.choice(INTERVALS),
    )


def _clients(rng: random.Random) -> Scenario:
    return Scenario(
        "client_limited",
        "",
        loads=(_loop(rng, rng.randrange(1, 7)),),
        cost=_cost(rng, 1),
        pp_max_micro_batch_size=1,
        decode_log_interval=rng.choice(INTERVALS),
    )


def _pool(rng: random.Random) -> Scenario:
    base = SCENARIOS["kv_limited"]
    return replace(
        base,
        loads=(
            ClosedLoop(
                concurrency=rng.randrange(48, 97),
                prompt_tokens=rng.randrange(400, 900),
                output_tokens=rng.randrange(600, 1200),
            ),
        ),
        kv_tokens=rng.randrange(22_000, 36_000),
        decode_log_interval=rng.choice(INTERVALS),
    )


def _graphs(rng: random.Random) -> Scenario:
    share = rng.uniform(0.12, 0.45)
    drawn = _even(rng, "graph_off", lambda cost: replace(cost, working_share=share))
    return replace(drawn, graph=False, device_timer=rng.random() < 0.5)


def _transfer(rng: random.Random) -> Scenario:
    drawn = _even(rng, "transfer_bound")
    seconds = _pass_seconds(drawn.cost, drawn.pp_max_micro_batch_size)
    return replace(drawn, cost=replace(drawn.cost, hop_seconds=seconds * rng.uniform(1.2, 2.5)))


def _card(rng: random.Random) -> Scenario:
    gpu, factor = rng.randrange(STAGES), rng.uniform(1.4, 2.2)
    drawn = _even(rng, "gpu_fault", lambda c: replace(c, stage_factors=_factors(gpu, factor)))
    return replace(drawn, fault=GpuFault(gpu, "sw_thermal_slowdown", 1.0 / factor, 30.0))


def _lost(rng: random.Random) -> Scenario:
    lost = Window(rng.uniform(15.0, 25.0), rng.uniform(6.0, 15.0), 180.0)
    fault = GpuFault(rng.randrange(STAGES), lost=lost, xid=79)
    return replace(_even(rng, "gpu_lost"), stall=lost, fault=fault)


CLASSES: dict[str, Draw] = {
    "healthy": _healthy,
    "thundering_herd": _herd,
    "uneven_split": _uneven,
    "over_split": _over,
    "stage_imbalance": _imbalance,
    "global_stall": _stall,
    "host_bound": _host,
    "prefill_interference": _prefill,
    "client_limited": _clients,
    "kv_limited": _pool,
    "graph_off": _graphs,
    "transfer_bound": _transfer,
    "gpu_fault": _card,
    "gpu_lost": _lost,
}
"""By the verdict that is true of them."""
