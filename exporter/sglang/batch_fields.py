"""Every field SGLang 0.3.0 to 0.5.23 prints in a batch line: its words, its kind, its figure.

Digits are ASCII digits, at most fifteen, and fractions have two: SGLang prints nothing else
there, and a number that was cut has fewer. What a figure can be at most stands beside it; how many
requests a batch can hold, which each server says for itself, is for `admission` to judge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import inf, isfinite
from typing import NamedTuple

Value = int | float | bool | str | dict[str, int | float | None] | None

PERCENT = 100.0


def _float_or_none(raw: str) -> float | None:
    value = float(raw)
    return value + 0.0 if isfinite(value) else None  # + 0.0: a printed -0.00 is no negative


def _percent_or_none(raw: str) -> float | None:
    return _float_or_none(raw[:-1])


def _ratio_or_none(raw: str) -> float | None:
    value = _float_or_none(raw[:-1])
    return None if value is None else value / PERCENT


def _ratio(raw: str) -> float:
    return float(raw[:-1]) / PERCENT


def _flag(raw: str) -> bool:
    return raw == "True"


class Kind(NamedTuple):
    """How a value is printed and read."""

    pattern: str
    read: Callable[[str], Value]
    """The value in the unit it is printed in."""
    figure: Callable[[str], Value]
    """The value in the unit of `Figures`."""
    plain: str | None = None
    """What the pattern is for a finite number without a sign."""
    plain_figure: Callable[[str], Value] | None = None
    """Reads only such, faster."""


_UNSIGNED = r"[0-9]{1,12}\.[0-9]{2}"
_NUMBER = rf"(?:-?{_UNSIGNED}|nan|-?inf)"
_INSTANT_PATTERN = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
_INT = Kind(r"-?[0-9]{1,15}", int, int, r"[0-9]{1,15}", int)
_FLOAT = Kind(_NUMBER, _float_or_none, _float_or_none, _UNSIGNED, float)
_SHARE = Kind(f"{_NUMBER}%", _percent_or_none, _ratio_or_none, f"{_UNSIGNED}%", _ratio)
_BOOL = Kind(r"(?:True|False)", _flag, _flag)
_INSTANT = Kind(_INSTANT_PATTERN, str, str, _INSTANT_PATTERN)


class Field(NamedTuple):
    """A field we know; `figure` names where it goes, `None` if it is shown nowhere."""

    kind: Kind
    figure: str | None = None
    pool: str | None = None
    most: float = inf
    """No server prints a larger figure there, nor one below 0."""
    plain: str | None = None
    """A pattern that matches only plain numbers of `kind` up to `most`; `None`: `kind`'s own."""

    @property
    def plain_pattern(self) -> str | None:
        """What a value looks like that can be taken as it stands."""
        return self.plain or self.kind.plain

    def can_be(self, figure: Value | Mapping[str, float]) -> bool:
        """Whether a server can print that; what is no number (`nan`, a flag) is no figure."""
        if isinstance(figure, Mapping):
            return all(self.can_be(each) for each in figure.values())
        return not isinstance(figure, int | float) or 0 <= figure <= self.most


MAX_QUEUED_REQUESTS = 10_000_000
MAX_BATCH_TOKENS = 1_000_000_000
MAX_PENDING_TOKENS = 1_000_000_000_000
MAX_TOKENS_PER_SECOND = 1e9
MAX_ACCEPT_LENGTH = 1024.0
MAX_RATIO = 1.05
"""Printed shares can pass 1 by rounding and by measuring two things a moment apart."""


def _count(figure: str, most: int) -> Field:
    return Field(_INT, figure, most=most, plain=f"[0-9]{{1,{len(str(most)) - 1}}}")


def _usage(pool: str) -> Field:
    plain = r"(?:0\.[0-9]{2}|1\.0[0-5])"
    return Field(_FLOAT, "token_usage_ratios", pool, MAX_RATIO, plain)


def _forward(figure: str) -> Field:
    plain = r"(?:[0-9]{1,2}|100)\.[0-9]{2}%"
    return Field(_SHARE, figure, most=MAX_RATIO, plain=plain)


FIELDS: dict[str, Field] = {
    "#running-req": Field(_INT, "running_reqs"),
    "#queue-req": _count("queued_reqs", MAX_QUEUED_REQUESTS),
    "#new-seq": Field(_INT, "new_seqs"),
    "#new-token": _count("new_tokens", MAX_BATCH_TOKENS),
    "#cached-token": _count("cached_tokens", MAX_BATCH_TOKENS),
    "#pending-token": _count("pending_tokens", MAX_PENDING_TOKENS),
    "#retracted-req": _count("retracted_reqs", MAX_QUEUED_REQUESTS),
    "token usage": _usage("kv"),
    "full token usage": _usage("full"),
    "swa token usage": _usage("swa"),
    "mamba usage": _usage("mamba"),
    "gen throughput (token/s)": Field(
        _FLOAT,
        "gen_throughput_tokens_per_second",
        most=MAX_TOKENS_PER_SECOND,
        plain=r"[0-9]{1,8}\.[0-9]{2}",
    ),
    "cuda graph": Field(_BOOL, "graph"),
    "cpu graph": Field(_BOOL, "graph"),
    "npu graph": Field(_BOOL, "graph"),
    "musa graph": Field(_BOOL, "graph"),
    "accept len": Field(
        _FLOAT, "accept_length", most=MAX_ACCEPT_LENGTH, plain=r"[0-9]{1,3}\.[0-9]{2}"
    ),
    "fwd occupancy": _forward("forward_occupancy_ratio"),
    "fwd+idle occupancy": _forward("forward_idle_occupancy_ratio"),
    # Read, checked, and shown nowhere.
    **dict.fromkeys(
        (
            "#token",
            "#full token",
            "#swa token",
            "mamba num",
            "#gpu token",
            "#cpu token",
            "#replay-token",
            "#prealloc-req",
            "#inflight-req",
            "#transfer-req",
            "#transferring-req",
            "#unbootstrapped-req",
            "#bootstrap-req",
            "#optimistic-req",
            "#host-receive-req",
            "waiting-image-req",
            "largest-len",
        ),
        Field(_INT),
    ),
    **dict.fromkeys(
        (
            "accept rate",
            "cap len",
            "block accept len",
            "pre-allocated usage",
            "gpu token usage",
            "cpu token usage",
            "input throughput (token/s)",
            "est. prefill TFLOPS/s (per GPU)",
            "est. decode TFLOPS/s (per GPU)",
            "est. read BW (GB/s per GPU)",
            "est. write BW (GB/s per GPU)",
        ),
        Field(_FLOAT),
    ),
    "cache hit rate": Field(_SHARE),
    "timestamp": Field(_INSTANT),
}

MATCHERS = {key: re.compile(field.kind.pattern) for key, field in FIELDS.items()}
_HYBRID = {  # sliding-window models, 0.4.9 to 0.4.9.post2 only
    "#token": re.compile(r"full=([0-9]{1,15}), swa=([0-9]{1,15})"),
    "token usage": re.compile(r"full=([0-9]{1,12}\.[0-9]{2}), swa=([0-9]{1,12}\.[0-9]{2})"),
}


HYBRID_KEYS = frozenset(_HYBRID)


def read_value(key: str, raw: str) -> Value:
    """A known field's value in the unit SGLang prints it in.

    Raises:
        ValueError: SGLang does not print such a value there; the line is malformed.
    """
    kind = FIELDS[key].kind
    if MATCHERS[key].fullmatch(raw):
        return kind.read(raw)
    hybrid = _HYBRID[key].fullmatch(raw) if key in _HYBRID else None
    if hybrid is None:
        raise ValueError(key)
    number = int if kind is _INT else _float_or_none
    return {"full": number(hybrid[1]), "swa": number(hybrid[2])}
