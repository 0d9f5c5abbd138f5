"""What a `server_args=` line tells of the configuration: allow-listed fields, never a key.

SGLang prints all its arguments once, from the main process, with the API key in clear:

    server_args=ServerArgs(model_path='…', …)     up to 0.5.18
    server_args={'model_path': '…', …}            from 0.5.19

The text is walked once, outside quotes; only known facts leave this module, and a text
that holds a secret's value, or looks as if it held one, does not leave it even then.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from exporter.records import FactValue
from exporter.sglang.known_facts import (
    ARGUMENTS,
    MAX_TEXT_CHARS,
    Kind,
    is_secret_name,
    is_usable,
    reveals,
)

__all__ = ["ALLOWED", "MAX_TEXT_CHARS", "parse_server_args", "render_server_args"]

ALLOWED = ARGUMENTS
MAX_ARGS_CHARS = 262_144

_INTEGER = re.compile(r"-?[0-9]{1,15}")
_SPELLINGS = (
    ("ServerArgs(", ")", re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,79})"), "="),
    ("{", "}", re.compile(r"'([A-Za-z_][A-Za-z0-9_]{0,79})'"), ": "),
)
_STOPS = re.compile(r"""['"(\[{)\]},]""")
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_STRINGS = {
    "'": re.compile(r"'(?:[^'\\]|\\.)*'", re.DOTALL),
    '"': re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL),
}


def parse_server_args(text: str) -> dict[str, FactValue] | None:
    """Allow-listed arguments from the text behind `server_args=`.

    A field whose value is not of its kind, too long or suspicious is left out: not known.
    Returns `None` when the text is no complete argument list in either spelling.
    """
    if len(text) > MAX_ARGS_CHARS:
        return None
    try:
        pairs = dict(_pairs(text))
    except ValueError:
        return None
    secrets = [value for name, raw in pairs.items() for value in _secret_texts(name, raw)]
    facts: dict[str, FactValue] = {}
    for name in ALLOWED.keys() & pairs.keys():
        value = _read(name, pairs[name])
        if value is not _REFUSED and not reveals(value, secrets):
            facts[name] = value  # type: ignore[assignment]  # _REFUSED was ruled out just now
    return facts or None


def render_server_args(facts: dict[str, FactValue]) -> str:
    """Allow-listed arguments in the newer spelling, readable by `parse_server_args`."""
    body = ", ".join(f"'{name}': {facts[name]!r}" for name in sorted(facts))
    return f"server_args={{{body}}}"


_REFUSED = object()


def _read(name: str, raw: str) -> object:
    if raw == "None":
        return None
    kind = ALLOWED[name]
    if kind is Kind.NUMBER:
        value: object = int(raw) if _INTEGER.fullmatch(raw) else None
    elif kind is Kind.FLAG:
        value = {"True": True, "False": False}.get(raw)
    else:
        value = _unquote(raw)
    return value if is_usable(name, value) else _REFUSED


def _secret_texts(name: str, raw: str) -> Iterator[str]:
    """The texts a secret argument holds, wherever they stand in its value."""
    if is_secret_name(name):
        for mark in "'\"":
            for match in _STRINGS[mark].finditer(raw):
                text = _unquote(match[0])
                if text:
                    yield text


def _unquote(raw: str) -> str | None:
    """The text of one Python string literal; `None` if it is none."""
    if raw[:1] not in _STRINGS or not _STRINGS[raw[0]].fullmatch(raw):
        return None
    try:
        text = ast.literal_eval(raw)
    except (SyntaxError, ValueError):
        return None
    return text if isinstance(text, str) else None


# --- the walk ----------------------------------------------------------------------------------


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """Names and raw values at the top level.

    Raises:
        ValueError: The text is not one complete argument list, or names something twice.
    """
    spelling = next((one for one in _SPELLINGS if text.startswith(one[0])), None)
    if spelling is None:
        raise ValueError("no argument list")
    opener, closer, name_pattern, between = spelling
    seen: set[str] = set()
    position = len(opener)
    while True:
        match = name_pattern.match(text, position)
        if match is None or match[1] in seen or not text.startswith(between, match.end()):
            raise ValueError("a new name was expected")
        seen.add(match[1])
        begin = match.end() + len(between)
        end = _end_of_value(text, begin)
        yield match[1], text[begin:end].strip()
        if text.startswith(closer, end) and not text[end + 1 :].strip():
            return
        if not text.startswith(", ", end):
            raise ValueError("a comma was expected")
        position = end + len(", ")


def _end_of_value(text: str, begin: int) -> int:
    """Where the value ends: the first comma or closing bracket outside quotes and brackets."""
    open_brackets: list[str] = []
    position = begin
    while stop := _STOPS.search(text, position):
        mark, position = stop[0], stop.end()
        if mark in _STRINGS:
            string = _STRINGS[mark].match(text, stop.start())
            if string is None:
                raise ValueError("a string does not end")
            position = string.end()
        elif mark in _CLOSERS:
            open_brackets.append(_CLOSERS[mark])
        elif mark != ",":
            if not open_brackets:
                return stop.start()
            if open_brackets.pop() != mark:
                raise ValueError("brackets do not match")
        elif not open_brackets:
            return stop.start()
    raise ValueError("cut short")
