"""One Prefill or Decode line, read strictly: the text behind the bracket in, figures out.

Reads every form SGLang 0.3.0 to 0.5.23 prints (0.5.23: `srt/observability/metrics_reporter.py`):

    Decode batch, #running-req: 8, #token: 2700, token usage: 0.08, cuda graph: True, …

Keys may come in any order; unknown ones are ignored and counted. A known key with a value SGLang
cannot have printed, a key twice, or a missing one that every version prints refuses the line.
A sequence of keys seen once is learned as one regular expression, because a server repeats it
for ever.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from exporter.records import Mode
from exporter.sglang.batch_fields import FIELDS, HYBRID_KEYS, MATCHERS, Field, Value, read_value

MAX_LINE_CHARS = 4096
MAX_FIELDS = 48


class Figures(NamedTuple):
    """What a batch line says; the same names, meanings and order as in `records.Batch`."""

    running_reqs: int | None
    queued_reqs: int | None
    new_seqs: int | None
    new_tokens: int | None
    cached_tokens: int | None
    pending_tokens: int | None
    retracted_reqs: int | None
    token_usage_ratios: dict[str, float]
    gen_throughput_tokens_per_second: float | None
    graph: bool | None
    accept_length: float | None
    forward_occupancy_ratio: float | None
    forward_idle_occupancy_ratio: float | None
    forward_iteration: int | None
    unknown_fields: int


class BatchLine(NamedTuple):
    """A line that is whole and well formed; nobody has judged who wrote it."""

    mode: Mode
    rank_text: str
    """The ranks as printed in the leading bracket, with a leading space: ` PP3 TP0`, or empty."""
    stamped: bool
    """Whether the line begins with SGLang's bracket; a custom logging configuration may omit it."""
    plausible: bool
    """Whether every figure is one that some server can print."""
    figures: Figures


class BatchParts(NamedTuple):
    """The text behind the bracket, taken apart without loss."""

    mode: Mode
    iteration: str | None
    mixed_running: str | None
    separator: str
    fields: tuple[tuple[str, str], ...]
    """Keys and values as printed, in their order."""
    tail: str

    def render(self) -> str:
        """The text again, character by character."""
        iteration = "" if self.iteration is None else f" [{self.iteration}]"
        mixed = "" if self.mixed_running is None else f"(mixed #running-req: {self.mixed_running})"
        fields = ", ".join(f"{key}: {value}" for key, value in self.fields)
        mode = self.mode.value.capitalize()
        return f"{mode} batch{iteration}{mixed}{self.separator} {fields}{self.tail}"

    def without_unknown(self) -> BatchParts:
        """Only the fields whose values are numbers, flags or instants by our own grammar."""
        return self._replace(fields=tuple(pair for pair in self.fields if pair[0] in FIELDS))

    def values(self) -> dict[str, Value]:
        """The known fields by SGLang's own words; percentages as printed, `nan` as `None`."""
        return {key: read_value(key, raw) for key, raw in self.fields if key in FIELDS}


# --- taking a line apart -----------------------------------------------------------------------

_REQUIRED = {
    Mode.DECODE: frozenset({"#running-req", "gen throughput (token/s)", "#queue-req"}),
    Mode.PREFILL: frozenset({"#new-seq", "#new-token", "#cached-token", "#queue-req"}),
}
_HEADER = re.compile(
    r"(Prefill|Decode) batch"
    r"(?: \[([0-9]{1,15})\])?"
    r"(?:\(mixed #running-req: ([0-9]{1,9})\))?"
    r"([.,]) ([ -~]*?)(,? ?)"
)
_UNKNOWN_FIELD = re.compile(r"([#A-Za-z][ -+\--9;-~]{0,63}): ([ -+\--~]{1,64})")
_PLAIN_VALUE = re.compile(r"[-+.%0-9A-Za-z]{1,32}")
_HYBRID_REST = re.compile(r"swa=[0-9.]{1,20}")


def take_apart(text: str) -> BatchParts | None:
    """The parts of a batch line without its bracket; `None` if it is not whole and well formed."""
    header = _HEADER.fullmatch(text) if len(text) <= MAX_LINE_CHARS else None
    if header is None:
        return None
    word, iteration, mixed_running, separator, body, tail = header.groups()
    fields = _split_fields(body)
    mode = Mode(word.lower())
    if fields is None or not _REQUIRED[mode] <= fields.keys():
        return None
    return BatchParts(mode, iteration, mixed_running, separator, tuple(fields.items()), tail)


def _split_fields(body: str) -> dict[str, str] | None:
    fields: dict[str, str] = {}
    key = ""
    for token in body.split(", "):
        name, colon, raw = token.partition(": ")
        if not colon:
            if not _may_follow(key, fields, token):
                return None
            fields[key] += f", {token}"
            continue
        key = name
        if key in fields or len(fields) == MAX_FIELDS:
            return None
        if key not in FIELDS and not _UNKNOWN_FIELD.fullmatch(token):
            return None
        fields[key] = raw
    try:
        for known in fields.keys() & FIELDS.keys():
            read_value(known, fields[known])
    except ValueError:
        return None
    return fields


def _may_follow(key: str, fields: dict[str, str], token: str) -> bool:
    """Whether a token without a colon belongs to the value before it (`full=…, swa=…`)."""
    return (
        key in HYBRID_KEYS
        and fields[key].startswith("full=")
        and bool(_HYBRID_REST.fullmatch(token))
    )


def is_plausible(parts: BatchParts) -> bool:
    """Whether every figure of a line that was taken apart is one that some server can print."""
    return all(
        field.can_be(_usage(key, raw, field.pool) if field.pool else field.kind.figure(raw))
        for key, raw in parts.fields
        if (field := FIELDS.get(key)) is not None and field.figure is not None
    )


def figures_of(parts: BatchParts) -> Figures:
    """The figures of a line that was taken apart."""
    figures = _blank()
    usage: dict[str, float] = figures[_USAGE]
    for key, raw in parts.fields:
        field = FIELDS.get(key)
        if field is None:
            figures[_UNKNOWN] += 1
        elif field.pool is not None:
            usage.update(_usage(key, raw, field.pool))
        elif field.figure is not None:
            figures[_SLOTS[field.figure]] = field.kind.figure(raw)
    if parts.mixed_running is not None:
        figures[_SLOTS["running_reqs"]] = int(parts.mixed_running)
    if parts.iteration is not None:
        figures[_ITERATION] = int(parts.iteration)
    return _make_figures(figures)


_make_figures = Figures._make
_SLOTS = {name: slot for slot, name in enumerate(Figures._fields)}
_USAGE = _SLOTS["token_usage_ratios"]
_ITERATION = _SLOTS["forward_iteration"]
_UNKNOWN = _SLOTS["unknown_fields"]


def _blank() -> list[Any]:
    figures: list[Any] = [None] * len(_SLOTS)
    figures[_USAGE] = {}
    figures[_UNKNOWN] = 0
    return figures


def _usage(key: str, raw: str, pool: str) -> dict[str, float]:
    value = read_value(key, raw)
    pools = value if isinstance(value, dict) else {pool: value}
    return {name: share for name, share in pools.items() if isinstance(share, float)}


# --- layouts: the forms this server prints -----------------------------------------------------


class Layout:
    """One form of a whole line, bracket included, as one regular expression.

    It accepts nothing that the slow way refuses, nor a figure that no server can print, and reads
    the same figures. Flags, `nan` and signs are part of the form.
    """

    __slots__ = ("_blank", "_figures", "_fullmatch", "_iteration", "_mode", "_pools")

    def __init__(self, prefix_pattern: str, parts: BatchParts) -> None:
        """Learns from a line; `prefix_pattern` matches the bracket, its only group the ranks."""
        self._mode = parts.mode
        self._blank = _blank()
        self._iteration = parts.iteration is not None
        self._figures: list[tuple[int, int, Callable[[str], Value]]] = []
        self._pools: list[tuple[str, int]] = []
        header = f"{prefix_pattern}{parts.mode.value.capitalize()} batch"
        iteration = r" \[([0-9]{1,15})\]" if self._iteration else ""
        fields = ", ".join(
            re.escape(key) + ": " + self._learn(key, raw) for key, raw in parts.fields
        )
        pattern = f"{header}{iteration}{re.escape(parts.separator)} {fields}{re.escape(parts.tail)}"
        self._fullmatch = re.compile(pattern).fullmatch

    def _learn(self, key: str, raw: str) -> str:
        """The pattern of one field's value, noting where its figure goes."""
        field = FIELDS.get(key)
        if field is None:
            self._blank[_UNKNOWN] += 1
            return _PLAIN_VALUE.pattern
        plain, read = field.plain_pattern, field.kind.plain_figure
        if plain is None or not re.fullmatch(plain, raw):
            self._learn_constant(field, raw)
            return re.escape(raw)
        if field.figure is None or read is None:
            return plain
        group = 1 + self._iteration + len(self._figures) + len(self._pools)
        if field.pool is None:
            self._figures.append((_SLOTS[field.figure], group, read))
        else:
            self._pools.append((field.pool, group))
        return f"({plain})"

    def _learn_constant(self, field: Field, raw: str) -> None:
        value = field.kind.figure(raw)
        if field.figure is not None and value is not None:
            if field.pool is None:
                self._blank[_SLOTS[field.figure]] = value
            else:
                self._blank[_USAGE][field.pool] = value

    def read(self, message: str) -> BatchLine | None:
        """The line's figures; `None` if it is not of this form."""
        match = self._fullmatch(message)
        if match is None:
            return None
        groups = match.groups()
        figures = self._blank.copy()
        for slot, group, read in self._figures:
            figures[slot] = read(groups[group])
        usage = figures[_USAGE] = figures[_USAGE].copy()
        for pool, group in self._pools:
            usage[pool] = float(groups[group])
        if self._iteration:
            figures[_ITERATION] = int(groups[1])
        return BatchLine(self._mode, groups[0], True, True, _make_figures(figures))


def is_plain(parts: BatchParts) -> bool:
    """Whether a layout can be learned from a line: known fields in today's forms alone.

    A field nobody knows may change its name with each line; learning each would cost 30 times as
    much as reading it slowly. Nor must one be learned that is not plausible.
    """
    return parts.mixed_running is None and all(
        key in FIELDS and MATCHERS[key].fullmatch(raw) for key, raw in parts.fields
    )
