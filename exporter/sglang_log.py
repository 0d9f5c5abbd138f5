"""A line of SGLang's log: text in, a batch, facts, an event, a refusal or nothing out.

Pure: it knows no process, no clock, no server, keeps no text and never raises. Whether a
well-formed line may count is for `admission` to say. Lines look like this (0.5.23):

    [2026-11-30 08:50:23 PP3 TP0] Decode batch, #running-req: 8, …
    [2026-11-30 08:50:21 PP3] max_total_num_tokens=32768, …, max_running_requests=2048, …
    [2026-11-30 08:49:36] server_args={'model_path': '…', …}

The bracket comes from `configure_logger`; its ranks stand in another order in other versions
and are found by name. What stands before the bracket, or behind a line separator inside the
text, was not printed by the scheduler: such a line is glued, whatever it says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from exporter.records import EventKind, FactValue, Refusal
from exporter.sglang.batch_line import (
    BatchLine,
    BatchParts,
    Layout,
    figures_of,
    is_plain,
    is_plausible,
    take_apart,
)
from exporter.sglang.server_args import parse_server_args, render_server_args


@dataclass(frozen=True, slots=True)
class ArgsLine:
    """Allow-listed server arguments."""

    facts: dict[str, FactValue]
    stamped: bool


@dataclass(frozen=True, slots=True)
class CapacityLine:
    """What a scheduler says about its pools once it has allocated them."""

    facts: dict[str, FactValue]
    rank_text: str
    stamped: bool


@dataclass(frozen=True, slots=True)
class EventLine:
    """A line that is no batch. `count`: retracted requests."""

    kind: EventKind
    rank_text: str
    stamped: bool
    count: int | None = None


HEAD_BYTES = 512
"""More than the longest bracket and the fixed words behind it."""

# Alternatives that begin alike are not joined: the search for the first letters is what is fast.
_OTHER_WANTED = re.compile(
    rb"server_args=|max_total_num_tokens=|fired up|#retracted_reqs|hit an exception|atchdog timeout"
)

ParsedLine = BatchLine | ArgsLine | CapacityLine | EventLine | Refusal | None


def is_wanted(message: bytes) -> bool:
    """Whether `parse_line` could make something of it; the one test that every line pays for.

    A batch line is looked for everywhere, because one inside other text is counted as refused;
    the other lines only where they can stand.
    """
    if b" batch" in message and (b"Decode batch" in message or b"Prefill batch" in message):
        return True
    return _OTHER_WANTED.search(message, 0, HEAD_BYTES) is not None


def parse_line(message: str) -> ParsedLine:
    """What a whole log line says; `None` when it is none of SGLang's lines we read."""
    for likely in _likely:
        if (line := likely.read(message)) is not None:
            _newest_plain[0] = message
            return line
    layout = _layouts.get(_outline(message))
    if layout is not None and (line := layout.read(message)) is not None:
        _newest_plain[0] = message
        _likely[:] = [layout, *_likely[: MOST_LIKELY - 1]]
        return line
    return _parse_slowly(message)


def stamp_of(message: str) -> str | None:
    """The time in SGLang's own bracket, as it stands; `None` if no bracket is at the first column."""
    return _PREFIX.match(message)["stamp"]  # type: ignore[index]  # it matches any text


def storable(message: str) -> str | None:
    """What of a line may be kept: fixed words, ranks, numbers, allow-listed arguments.

    Unknown fields, whatever a traceback quotes and every free text are left out. The result
    parses to the same record, but for its count of unknown fields. `None`: nothing may be kept.
    """
    if message is _newest_plain[0]:
        return message
    layout = _layouts.get(_outline(message))
    if layout is not None and layout.read(message) is not None:
        return message  # a layout holds known fields alone
    parsed = _parse_slowly(message)
    if parsed is None or isinstance(parsed, Refusal):
        return None
    bracket = _PREFIX.match(message)["bracket"] or ""  # type: ignore[index]  # it matches any text
    return bracket + _kept_words(parsed, message)


# --- prefix ------------------------------------------------------------------------------------

_PREFIX = re.compile(
    r"(?P<ray>\([A-Za-z_][-A-Za-z0-9_.:]{0,63} pid=[0-9]{1,10}(?:, ip=[0-9A-Fa-f.:]{2,45})?\) )?"
    r"(?P<bracket>"
    r"\[(?P<stamp>(?:[0-9]{4}-[0-9]{2}-[0-9]{2} )?[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{3})?)"
    r"(?P<ranks>(?: [A-Z][A-Z_]{0,15}[0-9]{1,4}){0,8})\] "
    r"|\[gpu(?:_id)?=[0-9]{1,3}\] "
    r")?"
)
_BATCH_WORDS = ("Decode batch", "Prefill batch")
_BATCH_LIKE = re.compile(r"(?:Decode|Prefill) batch(?:[^#A-Za-z]|\(mixed ){0,40}#[a-z]+-")
_TWIN = re.compile(r"(?:Decode|Prefill) batch\w")


# --- learned layouts ---------------------------------------------------------------------------

MAX_LAYOUTS = 128
MAX_OUTLINE_CHARS = 1024
_layouts: dict[bytes, Layout] = {}
MOST_LIKELY = 2
_likely: list[Layout] = []
"""Tried first: a server prints one form of either kind. Whichever accepts a line reads the same."""
_newest_plain = [""]
"""The line that a layout has read last: whoever keeps it asks at once what of it may be kept."""


def _outline(message: str) -> bytes:
    """The line without its digits, which is the same for all lines of one form."""
    if len(message) > MAX_OUTLINE_CHARS:
        return b""
    return message.encode("utf-8", "replace").translate(None, b"0123456789")


def _learn(message: str, prefix: re.Match[str], parts: BatchParts) -> None:
    if prefix["ray"] or not prefix["stamp"] or not is_plain(parts):
        return
    if len(message) > MAX_OUTLINE_CHARS:
        return
    if len(_layouts) >= MAX_LAYOUTS:  # hostile or many versions at once: start over
        _layouts.clear()
    stamp = re.sub(r"[0-9]", "[0-9]", re.escape(prefix["stamp"]))
    ranks = re.sub(r"[0-9]+", "[0-9]{1,4}", re.escape(prefix["ranks"]))
    _layouts[_outline(message)] = Layout(rf"\[{stamp}({ranks})\] ", parts)


# --- the slow way, which decides ---------------------------------------------------------------

_FIRED_UP = "The server is fired up and ready to roll!"
_ARGS = "server_args="
_CAPACITY = "max_total_num_tokens="
_EXCEPTION = "Scheduler hit an exception"
_RETRACTION = re.compile(
    r"(?:KV cache pool is full\. Retract requests\.|Decode out of memory happened\."
    r"|Testing retraction\.) #retracted_reqs: ([0-9]{1,15})(?:[ ,][ -~]*)?"
)
_WATCHDOG = re.compile(
    r"(?:Scheduler w|W)atchdog timeout \(self\.watchdog_timeout=([0-9]{1,9})(?:\.[0-9]{1,9})?[,)][ -~]*"
)
_EVENT_LIKE = re.compile(
    r"server_args=(?:ServerArgs\(|\{)|max_total_num_tokens=[0-9]|#retracted_reqs: [0-9]"
    rf"|{re.escape(_FIRED_UP)}"
)
_CAPACITY_VALUE = re.compile(r"-?[0-9]{1,15}|None")
_CAPACITY_KEPT = (
    "max_total_num_tokens",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "max_running_requests",
    "context_len",
)


def _parse_slowly(message: str) -> ParsedLine:
    prefix = _PREFIX.match(message)
    if prefix is None:  # cannot be: every part of it is optional
        return None
    text = message[prefix.end() :]
    ours = text.startswith(_BATCH_WORDS) and not _TWIN.match(text)
    if _BATCH_LIKE.search(message, prefix.end() + ours):
        return Refusal.GLUED
    if ours:
        return _parse_batch(message, prefix, text)
    return _parse_rest(prefix["ranks"] or "", prefix["stamp"] is not None, text)


def _parse_batch(message: str, prefix: re.Match[str], text: str) -> BatchLine | Refusal:
    parts = take_apart(text)
    if parts is None:
        return Refusal.MALFORMED
    if plausible := is_plausible(parts):
        _learn(message, prefix, parts)
    stamped = prefix["bracket"] is not None
    return BatchLine(parts.mode, prefix["ranks"] or "", stamped, plausible, figures_of(parts))


def _parse_rest(ranks: str, stamped: bool, text: str) -> ParsedLine:
    if text.startswith(_ARGS):
        arguments = parse_server_args(text[len(_ARGS) :])
        return Refusal.MALFORMED if arguments is None else ArgsLine(arguments, stamped)
    if text.startswith(_CAPACITY):
        facts = _parse_capacity(text)
        return Refusal.MALFORMED if facts is None else CapacityLine(facts, ranks, stamped)
    if event := _parse_event(text):
        return EventLine(event[0], ranks, stamped, event[1])
    return Refusal.GLUED if _EVENT_LIKE.search(text) else None


def _parse_event(text: str) -> tuple[EventKind, int | None] | None:
    if text.rstrip(" ") == _FIRED_UP:
        return EventKind.FIRED_UP, None
    if text.startswith(_EXCEPTION):
        return EventKind.SCHEDULER_EXCEPTION, None
    if retraction := _RETRACTION.fullmatch(text):
        return EventKind.RETRACTION, int(retraction[1])
    return (EventKind.WATCHDOG, None) if _WATCHDOG.fullmatch(text) else None


def _parse_capacity(text: str) -> dict[str, FactValue] | None:
    """The whole numbers of `max_total_num_tokens=…, …`; memory figures are not read."""
    facts: dict[str, FactValue] = {}
    for token in text.split(", "):
        name, _, value = token.partition("=")
        if name in _CAPACITY_KEPT:
            if name in facts or not _CAPACITY_VALUE.fullmatch(value):
                return None
            facts[name] = None if value == "None" else int(value)
    return facts if isinstance(facts.get("max_running_requests"), int) else None


# --- what may be kept --------------------------------------------------------------------------


def _kept_words(parsed: BatchLine | ArgsLine | CapacityLine | EventLine, message: str) -> str:
    match parsed:
        case BatchLine():
            return _kept_batch(message)
        case ArgsLine(facts=facts):
            return render_server_args(facts)
        case CapacityLine(facts=facts):
            names = (name for name in _CAPACITY_KEPT if name in facts)
            return ", ".join(f"{name}={facts[name]}" for name in names)
    return _EVENT_WORDS[parsed.kind].format(count=parsed.count)


def _kept_batch(message: str) -> str:
    prefix = _PREFIX.match(message)
    parts = take_apart(message[prefix.end() :])  # type: ignore[union-attr]  # it was read before
    return parts.without_unknown().render()  # type: ignore[union-attr]  # it was read before


_EVENT_WORDS = {
    EventKind.FIRED_UP: _FIRED_UP,
    EventKind.RETRACTION: "KV cache pool is full. Retract requests. #retracted_reqs: {count}",
    EventKind.SCHEDULER_EXCEPTION: f"{_EXCEPTION}:",
    EventKind.WATCHDOG: "Scheduler watchdog timeout (self.watchdog_timeout=0)",
}
