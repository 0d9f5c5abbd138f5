"""What follows from a server's facts for its pipeline: stages of this node, slots, log interval.

Counts are `None` where the facts do not say; nothing is assumed in their place.
"""

from __future__ import annotations

from collections.abc import Mapping

from exporter.records import FactValue


def count_of(facts: Mapping[str, FactValue], key: str) -> int | None:
    """A positive whole number from the facts; `None` if it is missing or anything else."""
    value = facts.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def local_pp_ranks(facts: Mapping[str, FactValue]) -> range | None:
    """The pipeline stages whose processes run on this node (SGLang's `_calculate_rank_ranges`).

    `None` without `pp_size`.
    """
    pp_size = count_of(facts, "pp_size")
    if pp_size is None:
        return None
    nnodes = count_of(facts, "nnodes") or 1
    node_rank = facts.get("node_rank")
    if nnodes == 1 or not isinstance(node_rank, int) or isinstance(node_rank, bool):
        return range(pp_size)
    nodes_per_stage = max(nnodes // pp_size, 1)
    stages_per_node = max(pp_size // nnodes, 1)
    first = stages_per_node * (node_rank // nodes_per_stage)
    return range(first, min(first + stages_per_node, pp_size))


def micro_batch_slots(facts: Mapping[str, FactValue]) -> int | None:
    """Slots that micro-batches circulate in: `pp_size + pp_async_batch_depth`.

    sglang 0.5.7 to 0.5.23, managers/scheduler_pp_mixin.py, init_pp_loop_state; older releases have
    no depth and `pp_size` slots. `None` for a server of one stage: it has no such loop.
    """
    pp_size = count_of(facts, "pp_size")
    if pp_size is None or pp_size == 1:
        return None
    return pp_size + (count_of(facts, "pp_async_batch_depth") or 0)
