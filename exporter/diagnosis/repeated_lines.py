"""Decode lines that say the same twice: somebody else than the server may have written them. Pure.

A decode line holds the throughput since the line before, to two decimals, and the pool's usage: a
scheduler hardly ever prints the same again within a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exporter.diagnosis.findings import Evidence
from exporter.pipeline.server_facts import count_of
from exporter.records import Batch, FactValue, Mode

_SOON_SECONDS = 1.0


def repeated_lines(batches: Sequence[Batch], facts: Mapping[str, FactValue]) -> Evidence | None:
    """How many decode lines of one pipeline repeat one of their stage; `None`: none does.

    As many are let pass as there are ranks that may print the same and that nothing tells apart.
    """
    decodes = [batch for batch in batches if batch.mode is Mode.DECODE]
    copies, repeated = _copies(decodes, facts), 0
    runs: dict[tuple[object, ...], tuple[float, int]] = {}
    for batch in decodes:
        said = _said(batch)
        began_at, count = runs.get(said, (batch.logged_at, 0))
        if batch.logged_at - began_at > _SOON_SECONDS:
            began_at, count = batch.logged_at, 0
        runs[said] = began_at, count + 1
        repeated += count >= copies
    if not repeated:
        return None
    source = f"of {len(decodes)} decode lines: the same as one of its stage within a second before"
    return Evidence("repeated_lines", repeated, "0", source, supports=False)


def _said(batch: Batch) -> tuple[object, ...]:
    usage = tuple(sorted(batch.token_usage_ratios.items()))
    return (
        *(batch.pp_rank, batch.tp_rank, batch.running_reqs, batch.queued_reqs, usage),
        *(batch.gen_throughput_tokens_per_second, batch.graph, batch.accept_length),
        batch.forward_iteration,
    )


def _copies(decodes: Sequence[Batch], facts: Mapping[str, FactValue]) -> int:
    """Ranks that print under the same name: those of a kind that no line names."""
    ranks = {
        "pp_size": any(batch.pp_rank for batch in decodes),
        "tp_size": any(batch.tp_rank for batch in decodes),
        "dp_size": any(batch.dp_rank for batch in decodes),
    }
    copies = 1
    for size, is_named in ranks.items():
        copies *= 1 if is_named else count_of(facts, size) or 1
    return copies
