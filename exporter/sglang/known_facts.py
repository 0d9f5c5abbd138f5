"""The facts that may be known of a server: their names, their kinds, their bounds.

One list for all ways that facts come: the `server_args=` line, `/server_info`, the configuration.
What is not named here is never kept; nor is a text that holds a secret's value, or looks as if it
held one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum


class Kind(StrEnum):
    """What a fact holds."""

    NUMBER = "number"
    FLAG = "flag"
    TEXT = "text"


ARGUMENTS: dict[str, Kind] = {
    **dict.fromkeys(
        (
            "pp_size",
            "tp_size",
            "dp_size",
            "ep_size",
            "attn_cp_size",
            "moe_dp_size",
            "dcp_size",
            "attn_dp_size",
            "nnodes",
            "node_rank",
            "base_gpu_id",
            "gpu_id_step",
            "port",
            "pp_async_batch_depth",
            "pp_max_micro_batch_size",
            "max_micro_batch_size",
            "max_running_requests",
            "cuda_graph_max_bs",
            "decode_log_interval",
        ),
        Kind.NUMBER,
    ),
    **dict.fromkeys(
        (
            "enable_dp_attention",
            "enable_dynamic_chunking",
            "disable_cuda_graph",
            "enable_metrics",
            "enable_metrics_for_all_schedulers",
            "sleep_on_idle",
        ),
        Kind.FLAG,
    ),
    **dict.fromkeys(
        ("model_path", "served_model_name", "host", "disaggregation_mode", "device"), Kind.TEXT
    ),
}
"""SGLang's arguments that may be known (each may also be `None`: left to SGLang)."""

FACTS: dict[str, Kind] = {**ARGUMENTS, "version": Kind.TEXT}
"""All facts that may be known; the version is no argument."""

LIMITS = {"pp_size": 64, "tp_size": 4096, "dp_size": 4096}
"""Beyond these a size is taken for nonsense and dropped."""

MAX_TEXT_CHARS = 256
MAX_NUMBER = 10**15 - 1

_SECRET_NAME = re.compile(
    r"key$|_keys$|password|secret|credential|(?:^|_)auth|token$", re.IGNORECASE
)
_SECRET_TEXT = re.compile(
    r"(?:key|passw(?:or)?d|secret|token|auth)['\"]?\s*[=:]|://[^/]*@|\bbearer\b", re.IGNORECASE
)


def is_secret_name(name: str) -> bool:
    """Whether an argument of this name holds a secret: its value may show up nowhere."""
    return _SECRET_NAME.search(name) is not None


def is_usable(name: str, value: object) -> bool:
    """Whether a value is of the fact's kind, within its bounds and no secret; `None` is not."""
    kind = FACTS.get(name)
    if kind is Kind.FLAG:
        return isinstance(value, bool)
    if kind is Kind.NUMBER:
        if isinstance(value, bool) or not isinstance(value, int):
            return False
        low, high = (1, LIMITS[name]) if name in LIMITS else (-MAX_NUMBER, MAX_NUMBER)
        return low <= value <= high
    return kind is Kind.TEXT and isinstance(value, str) and _is_harmless(value)


def reveals(value: object, secrets: Iterable[str]) -> bool:
    """Whether a text holds the value of a secret."""
    return isinstance(value, str) and any(secret in value for secret in secrets)


def expectation(name: str) -> str:
    """What a fact's value must be, for people: "a whole number from 1 to 64"."""
    if name in LIMITS:
        return f"a whole number from 1 to {LIMITS[name]}"
    return {
        Kind.NUMBER: "a whole number, 0 or more",
        Kind.FLAG: "true or false",
        Kind.TEXT: f"printable text of at most {MAX_TEXT_CHARS} characters that holds no secret",
    }[FACTS[name]]


def _is_harmless(text: str) -> bool:
    return len(text) <= MAX_TEXT_CHARS and text.isprintable() and not _SECRET_TEXT.search(text)
