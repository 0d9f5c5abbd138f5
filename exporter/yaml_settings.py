"""A YAML text → the values of known settings, and every mistake in it with its place."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import yaml

from exporter.setting_values import WrongValueError, shown
from exporter.settings import Setting

_NOTHING_ELSEWHERE: Mapping[str, str] = {}


def read_settings(
    values: object,
    settings: Sequence[Setting],
    path: str,
    mistakes: list[str],
    elsewhere: Mapping[str, str] = _NOTHING_ELSEWHERE,
) -> dict[str, Any]:
    """The values given, read; a key with nothing behind it counts as left out.

    Args:
        values: What YAML gave.
        settings: What may stand here.
        path: Where `values` stands in the file; empty at its top.
        mistakes: What is wrong is added to it.
        elsewhere: Key → where it belongs, for keys that are often written here.
    """
    if not isinstance(values, dict):
        place = path or "the configuration"
        mistakes.append(f"{place}: {shown(values)} is not a mapping of settings to values")
        return {}
    known = {setting.key: setting for setting in settings}
    prefix = f"{path}." if path else ""
    read: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            mistakes.append(_unknown_key(key, known, prefix, elsewhere))
        elif value is not None:
            try:
                read[key] = known[key].read(value)
            except WrongValueError as error:
                mistakes += [f"{prefix}{key}{below}: {what}" for below, what in error.mistakes]
    return read


def _unknown_key(
    key: object, known: Mapping[str, Setting], prefix: str, elsewhere: Mapping[str, str]
) -> str:
    nearest = difflib.get_close_matches(str(key), known, n=1)
    if nearest:
        hint = f"did you mean {nearest[0]}?"
    elif isinstance(key, str) and key in elsewhere:
        hint = elsewhere[key]
    else:
        hint = f"known here: {', '.join(known)}"
    place = key if isinstance(key, str) and key.isprintable() and len(key) <= 64 else shown(key)
    return f"{prefix}{place}: unknown setting; {hint}"


def read_yaml(text: str) -> tuple[object, list[str]]:
    """What a YAML text holds, and what is wrong with it as YAML."""
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data(), loader.mistakes
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the configuration"
        return None, [f"{place}: not YAML: {error.problem}".replace("\n", " ")]
    except (yaml.YAMLError, ValueError) as error:
        return None, [f"the configuration: not YAML: {error}".replace("\n", " ")]
    except RecursionError:
        return None, ["the configuration: nested too deeply"]


class _Loader(yaml.SafeLoader):
    """Plain YAML only: no aliases (they can grow without bound), no key written twice."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.mistakes: list[str] = []

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs leave it out
            raise yaml.composer.ComposerError(
                None, None, "aliases (*name) are not supported", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            written = (key.tag, str(key.value))
            if written in seen:
                line = key.start_mark.line + 1
                self.mistakes.append(f"line {line}: the key {shown(key.value)} is written twice")
            seen.add(written)
        return super().construct_mapping(node, deep)
