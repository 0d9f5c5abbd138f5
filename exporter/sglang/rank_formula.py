"""SGLang's own arithmetic: which GPU ordinal each rank of this node is started on.

sglang 0.4.6.post2 to 0.5.23, entrypoints/engine.py, _launch_scheduler_processes. The ordinal is
CUDA's inside the server's CUDA_VISIBLE_DEVICES, not NVML's index: equal only if the server sees
all GPUs, in PCI order (the default order is fastest first).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from exporter.records import FactValue

_MOST_RANKS = 4096


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank of a server and the GPU ordinal SGLang gives it."""

    dp_rank: int
    pp_rank: int
    tp_rank: int
    ordinal: int


def place_ranks(facts: Mapping[str, FactValue]) -> tuple[RankPlace, ...]:
    """The ranks that run on this node; empty if the facts do not tell.

    `tp_size` must be known; what else is missing has SGLang's own default (older releases do not
    print what they do not have). Data-parallel replicas over several nodes are not told.
    """
    tp_size = _whole(facts, "tp_size", None)
    if tp_size is None:
        return ()
    pp_size, nnodes = _whole(facts, "pp_size", 1), _whole(facts, "nnodes", 1)
    replicas = _whole(facts, "dp_size", 1)
    if not pp_size or not nnodes or not replicas or tp_size * pp_size * replicas > _MOST_RANKS:
        return ()
    attention = facts.get("enable_dp_attention") is True
    if replicas > 1 and not attention and nnodes > 1:
        return ()
    node = _Node(tp_size, pp_size, nnodes, _whole(facts, "node_rank", 0) or 0)
    base, step = _whole(facts, "base_gpu_id", 0) or 0, _whole(facts, "gpu_id_step", 1) or 1
    if attention:
        # One engine; a replica is a slice of its tensor-parallel ranks.
        width = max(tp_size // replicas, 1)
        return tuple(
            RankPlace(tp // width if replicas > 1 else 0, pp, tp, base + offset)
            for pp, tp, offset in node.ranks(step)
        )
    # 0.5.3 and newer; before, a replica's offset left out pp_size (and replicas overlapped).
    return tuple(
        RankPlace(dp, pp, tp, base + dp * tp_size * pp_size * step + offset)
        for dp in range(replicas)
        for pp, tp, offset in node.ranks(step)
    )


@dataclass(frozen=True, slots=True)
class _Node:
    tp_size: int
    pp_size: int
    nnodes: int
    node_rank: int

    def ranks(self, step: int) -> Iterator[tuple[int, int, int]]:
        """(pp_rank, tp_rank, GPU offset) of this node; the step does not multiply the PP term."""
        nodes_per_pp = max(self.nnodes // self.pp_size, 1)
        pp_here = max(self.pp_size // self.nnodes, 1)
        tp_here = self.tp_size // nodes_per_pp
        if tp_here < 1:
            return
        first_pp = pp_here * (self.node_rank // nodes_per_pp)
        first_tp = tp_here * (self.node_rank % nodes_per_pp)
        for pp in range(first_pp, first_pp + pp_here):
            for tp in range(first_tp, first_tp + tp_here):
                yield pp, tp, (pp % pp_here) * tp_here + (tp % tp_here) * step


def _whole(facts: Mapping[str, FactValue], name: str, default: int | None) -> int | None:
    """A count from the facts, the default where it is missing or no whole number."""
    value = facts.get(name)
    return value if type(value) is int and value >= 0 else default
