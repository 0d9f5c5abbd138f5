"""All GPUs of a server together over a window: how many, which, and what they draw. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.diagnosis.steady_window import Span
from exporter.diagnosis.watch import Watch
from exporter.pipeline.server_facts import count_of
from exporter.records import FactValue


def server_gpus(watch: Watch, server: str, span: Span | None) -> dict[str, object]:
    """GPUs seen and expected, their models, and their mean power together in watts.

    Watts are `None` unless all of them are seen: a sum over some is no sum.
    """
    places = watch.maps[server].stages if server in watch.maps else ()
    used = sorted({place.gpu for place in places})
    seen = [watch.gpus[gpu] for gpu in used if gpu in watch.gpus]
    expected = _expected(watch.facts.get(server, {}))
    watts = [gpu.watts.mean(*span) for gpu in seen] if span is not None else []
    known = [mean for mean in watts if mean is not None]
    whole = bool(known) and len(known) == len(used) and expected in {None, len(used)}
    models = {gpu.identity.model for gpu in seen if gpu.identity is not None}
    return {
        "seen": len(used) or None,
        "expected": expected,
        "models": sorted(model for model in models if model is not None),
        "watts": sum(known) if whole else None,
    }


def _expected(facts: Mapping[str, FactValue]) -> int | None:
    """GPUs the server runs on, all nodes; with attention by dp the replicas share those of tp."""
    stages, ranks = count_of(facts, "pp_size"), count_of(facts, "tp_size")
    if stages is None or ranks is None or facts.get("device") == "cpu":
        return None
    replicas = 1 if facts.get("enable_dp_attention") is True else count_of(facts, "dp_size") or 1
    return stages * ranks * replicas
