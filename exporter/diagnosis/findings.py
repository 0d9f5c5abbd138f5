"""The closed set of verdicts, and what one hypothesis says: score, evidence, gain, what is missing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

HOLDS = 0.5
"""Score from which a hypothesis is taken to hold."""
CONFIDENT = 0.7
"""A verdict of this confidence must not be wrong."""


class Verdict(StrEnum):
    """Why a pipeline is as fast as it is (the closed set of the contract)."""

    HEALTHY = "healthy"
    THUNDERING_HERD = "thundering_herd"
    UNEVEN_SPLIT = "uneven_split"
    OVER_SPLIT = "over_split"
    STAGE_IMBALANCE = "stage_imbalance"
    GLOBAL_STALL = "global_stall"
    HOST_BOUND = "host_bound"
    PREFILL_INTERFERENCE = "prefill_interference"
    CLIENT_LIMITED = "client_limited"
    KV_LIMITED = "kv_limited"
    GRAPH_OFF = "graph_off"
    TRANSFER_BOUND = "transfer_bound"
    GPU_FAULT = "gpu_fault"
    CANNOT_TELL = "cannot_tell"


class Missing(StrEnum):
    """What would have to be known; `advice` says how to get it."""

    LOAD = "requests in flight for long enough"
    LINES = "batch lines of the server"
    SLOTS = "the sizes of all micro-batches"
    WORKING = "the working share of every stage, apart from waiting"
    GPUS = "the GPUs"
    THROTTLING = "throttle reasons of the slow stage's GPU"
    STAGES = "the stages on other nodes"
    GRAPHS = "whether decode runs as CUDA graphs"
    PREFILL = "the share of prefill"
    TIMES = "times finer than a second: gaps and stops below that do not show"
    CONCURRENCY = "how many requests the clients kept in flight"
    ARGUMENTS = "the arguments the server was started with"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One figure held against what a hypothesis expects of it."""

    quantity: str
    value: float | int | str | None
    expected: str
    source: str
    supports: bool = True


@dataclass(frozen=True, slots=True)
class Gain:
    """Throughput after the cure over throughput now.

    `assumes` says under what assumption; `ratio` is `None` where nothing allows a number.
    """

    ratio: float | None
    assumes: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What one hypothesis says.

    `score` 0 to 1 is how surely it holds. `missing` names what would decide it, where it can be
    neither held nor excluded.
    """

    verdict: Verdict
    score: float
    evidence: tuple[Evidence, ...] = ()
    gain: Gain | None = None
    missing: tuple[Missing, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether it is taken to hold."""
        return self.score >= HOLDS


def excluded(verdict: Verdict, *evidence: Evidence) -> Finding:
    """A hypothesis that the evidence speaks against."""
    return Finding(verdict, 0.0, evidence)


def undecided(verdict: Verdict, *missing: Missing, score: float = 0.0) -> Finding:
    """A hypothesis that could hold or not: something is missing."""
    return Finding(verdict, score, missing=missing)
