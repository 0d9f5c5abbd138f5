"""A YAML text → what it holds, and what is wrong with it as YAML."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from exporter.setting_values import shown


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
