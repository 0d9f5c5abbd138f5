"""What SGLang's `/server_info` tells of the configuration: known facts only, never a key.

The answer is one JSON object: all arguments as they were resolved, `api_key` in clear among them,
what the scheduler reported, `version`, and `internal_states`, one object for each data-parallel
rank, written by its first pipeline stage. In those stand the values that the scheduler settled on
(sglang 0.5.23, srt/managers/scheduler.py, get_internal_state).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from exporter.records import FactValue
from exporter.sglang.known_facts import FACTS, MAX_TEXT_CHARS, is_secret_name, is_usable, reveals

_NODES_OWN = ("node_rank", "base_gpu_id", "gpu_id_step")
_SETTLED = {
    "max_running_requests": "effective_max_running_requests_per_dp",
    "pp_max_micro_batch_size": "pp_max_micro_batch_size",
    "max_micro_batch_size": "max_micro_batch_size",
}
"""Facts of the scheduler's own state, with their names there."""


class NotServerInfoError(Exception):
    """An answer holds no facts of an SGLang server; the message repeats none of its text."""


def parse_server_info(body: bytes, *, same_node: bool) -> dict[str, FactValue]:
    """Known facts from the body of an answer; what it leaves to SGLang (null) is not known.

    `max_running_requests` is the one the scheduler settled on or is left out: the argument is what
    was asked for, and the log's capacity line knows better. Of a server on several nodes, what
    differs by node is taken only if the answer came from the `same_node`.

    Raises:
        NotServerInfoError: It is no JSON object, or none of an SGLang server.
    """
    answer = _object(body)
    secrets = {text for text in _secret_texts(answer) if len(text) <= MAX_TEXT_CHARS}
    values = {name: answer[name] for name in FACTS.keys() & answer.keys()}
    values.pop("max_running_requests", None)
    values.update(_settled(answer.get("internal_states")))
    if not same_node and values.get("nnodes") not in (None, 1):
        for name in _NODES_OWN:
            values.pop(name, None)
    facts = {
        name: value
        for name, value in values.items()
        if is_usable(name, value) and not reveals(value, secrets)
    }
    if "pp_size" not in facts and "tp_size" not in facts:
        raise NotServerInfoError("it holds no SGLang server's arguments")
    return facts


def _object(body: bytes) -> dict[str, Any]:
    # Not chained: the decoder's errors carry the text they failed on.
    try:
        answer = json.loads(body)
    except RecursionError:
        raise NotServerInfoError("it is nested too deeply") from None
    except ValueError:
        raise NotServerInfoError("it is not JSON") from None
    if not isinstance(answer, dict):
        raise NotServerInfoError("it is no JSON object")
    return answer


def _settled(states: object) -> dict[str, object]:
    """What the scheduler of the first data-parallel rank settled on."""
    if not isinstance(states, list) or not states or not isinstance(states[0], dict):
        return {}
    state: Mapping[str, object] = states[0]
    named = {name: state.get(there) for name, there in _SETTLED.items()}
    return {name: value for name, value in named.items() if is_usable(name, value)}


def _secret_texts(answer: dict[str, Any]) -> Iterator[str]:
    """All texts below a secret's name, at any depth; without recursion, which depth could exhaust."""
    waiting: list[tuple[object, bool]] = [(answer, False)]
    while waiting:
        value, is_secret = waiting.pop()
        if isinstance(value, dict):
            waiting += [(below, is_secret or is_secret_name(name)) for name, below in value.items()]
        elif isinstance(value, list):
            waiting += [(below, is_secret) for below in value]
        elif is_secret and isinstance(value, str) and value:
            yield value
