"""The configuration: what is read from where, checked completely before anything starts."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from exporter.records import FactValue
from exporter.setting_values import (
    DEFAULT_PORT,
    DEFAULT_UNIT,
    WrongValueError,
    read_listen,
    read_name,
    shown,
)
from exporter.settings import INPUTS, SERVER_SETTINGS, SETTINGS, Setting

__all__ = [
    "DEFAULT_PORT",
    "DEFAULT_UNIT",
    "Config",
    "ConfigError",
    "ServerConfig",
    "build",
    "check",
    "default_server_name",
    "load",
    "parse",
    "parse_listen",
]

_MOST_BYTES = 256 << 10


class ConfigError(Exception):
    """The configuration is wrong; the message has one line per mistake, each with its path."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One SGLang server and the one place its log is read from."""

    name: str
    unit: str | None = None
    container: str | None = None
    identifier: str | None = None
    files: tuple[str, ...] = ()
    stdin: bool = False
    url: str | None = None
    token_file: Path | None = None
    """Holds the API key that goes along to `url`."""
    token: str | None = field(default=None, repr=False)
    """That key, where a program knows it already; no setting, and never shown."""
    facts: Mapping[str, FactValue] = field(default_factory=dict)
    """What holds of the server, whatever it says itself."""
    stages: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Configured GPUs by pp_rank, in tp_rank order: NVML index or UUID, as text."""


@dataclass(frozen=True, slots=True)
class Config:
    """Everything `serve` needs."""

    servers: tuple[ServerConfig, ...]
    listen_host: str | None = None
    """`None`: all addresses."""
    listen_port: int = DEFAULT_PORT
    journal_directory: Path | None = None
    """`None`: this machine's own journal."""
    state_file: Path | None = None
    """Where reading positions are kept; `None`: the default of the state directory."""
    from_start: bool = False
    nvml: bool = True
    """Whether GPUs are read at all."""


def load(path: Path) -> Config:
    """The configuration in a file.

    Raises:
        ConfigError: It cannot be read, or has mistakes: all of them are named.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(
            f"cannot read the configuration {path}: no such file; deploy/exporter.yaml is an example"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {error.strerror}; "
            "make it a file that the exporter's user can read"
        ) from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"the configuration {path} is larger than {_MOST_BYTES} bytes")
    try:
        return parse(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration {path} is not UTF-8 text") from error


def parse(text: str) -> Config:
    """The configuration in a YAML text.

    Raises:
        ConfigError: It has mistakes: all of them are named.
    """
    document, mistakes = _read_yaml(text)
    if document is None and not mistakes:
        raise ConfigError("the configuration is empty; write at least `servers:`, or give no file")
    if document is None:
        raise ConfigError("\n".join(mistakes))
    try:
        config = build(document)
    except ConfigError as error:
        mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return config


def check(text: str) -> list[str]:
    """All mistakes of a YAML text, each with its path; none if it can be used."""
    try:
        parse(text)
    except ConfigError as error:
        return str(error).split("\n")
    return []


def build(document: object) -> Config:
    """The configuration in a mapping shaped like the file, e.g. made of command-line options.

    Raises:
        ConfigError: It has mistakes: all of them are named.
    """
    mistakes: list[str] = []
    values = _read_settings(document, SETTINGS, "", mistakes)
    entries = values.pop("servers", [{"unit": DEFAULT_UNIT}])
    servers = [
        _build_server(entry, f"servers[{index}]", mistakes) for index, entry in enumerate(entries)
    ]
    _check_together(servers, mistakes)
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    if "listen" in values:
        values["listen_host"], values["listen_port"] = values.pop("listen")
    return Config(servers=tuple(server for server in servers if server), **values)


def parse_listen(text: str) -> tuple[str | None, int]:
    """Host and port of `127.0.0.1:10810`, `[::1]:10810` or `:10810` (`None`: all addresses).

    Raises:
        ConfigError: It is none of these.
    """
    try:
        return read_listen(text)
    except WrongValueError as error:
        raise ConfigError(f"listen: {error}") from error


def default_server_name(server: ServerConfig) -> str:
    """The name of a server that is given none: its unit, container or identifier, else sglang."""
    if server.unit:
        return server.unit.removesuffix(".service")
    return server.container or server.identifier or "sglang"


def _build_server(entry: object, path: str, mistakes: list[str]) -> ServerConfig | None:
    found = len(mistakes)
    values = _read_settings(entry, SERVER_SETTINGS, path, mistakes)
    given = [key for key in INPUTS if isinstance(entry, dict) and _is_given(entry.get(key))]
    if isinstance(entry, dict) and len(given) != 1:
        said = f"{' and '.join(given)} are given" if given else "no input is given"
        mistakes.append(f"{path}: {said}; give exactly one of {', '.join(INPUTS)}")
    if isinstance(entry, dict) and "token_file" in values and entry.get("url") is None:
        mistakes.append(f"{path}.token_file: it needs `url`, the server it is for")
    if "name" not in values and len(mistakes) == found:
        try:
            values["name"] = read_name(default_server_name(ServerConfig("", **values)))
        except WrongValueError as error:
            mistakes.append(f"{path}.name: the default {error}; give a name")
    return ServerConfig(**values) if len(mistakes) == found else None


def _is_given(value: object) -> bool:
    return value is not None and value is not False


def _check_together(servers: Sequence[ServerConfig | None], mistakes: list[str]) -> None:
    """Two servers may share neither a name nor an input."""
    seen: dict[tuple[str, Any], int] = {}
    for index, server in enumerate(servers):
        for key in ("name", *INPUTS) if server else ():
            value = getattr(server, key)
            first = seen.setdefault((key, value), index) if value else index
            if first != index:
                mistakes.append(
                    f"servers[{index}].{key}: {shown(value)} is that of servers[{first}] too"
                )


def _read_settings(
    values: object, settings: Sequence[Setting], path: str, mistakes: list[str]
) -> dict[str, Any]:
    """The values given, read; a key with nothing behind it counts as left out."""
    if not isinstance(values, dict):
        place = path or "the configuration"
        mistakes.append(f"{place}: {shown(values)} is not a mapping of settings to values")
        return {}
    known = {setting.key: setting for setting in settings}
    prefix = f"{path}." if path else ""
    read: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            mistakes.append(_unknown_key(key, known, prefix))
        elif value is not None:
            try:
                read[key] = known[key].read(value)
            except WrongValueError as error:
                mistakes += [f"{prefix}{key}{below}: {what}" for below, what in error.mistakes]
    return read


def _unknown_key(key: object, known: Mapping[str, Setting], prefix: str) -> str:
    nearest = difflib.get_close_matches(str(key), known, n=1)
    elsewhere = {setting.key for setting in SERVER_SETTINGS} - known.keys()
    if nearest:
        hint = f"did you mean {nearest[0]}?"
    elif key in elsewhere:
        hint = "it belongs to an entry of `servers`"
    else:
        hint = f"known here: {', '.join(known)}"
    place = key if isinstance(key, str) and key.isprintable() and len(key) <= 64 else shown(key)
    return f"{prefix}{place}: unknown setting; {hint}"


# --- YAML ----------------------------------------------------------------------------------------


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


def _read_yaml(text: str) -> tuple[object, list[str]]:
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
