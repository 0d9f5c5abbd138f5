"""The configuration: what is read from where, checked completely before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exporter.records import FactValue
from exporter.setting_values import (
    DEFAULT_PORT,
    DEFAULT_UNIT,
    WrongValueError,
    read_listen,
    read_name,
    shown,
)
from exporter.settings import INPUTS, SERVER_SETTINGS, SETTINGS
from exporter.yaml_settings import read_settings

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
_ELSEWHERE = {setting.key: "it belongs to an entry of `servers`" for setting in SERVER_SETTINGS}


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
    web_config_file: Path | None = None
    """TLS, passwords and headers, in exporter-toolkit's format; `None`: plain HTTP for everybody."""
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
    from exporter.yaml_text import read_yaml  # noqa: PLC0415  # without a file PyYAML is not needed

    document, mistakes = read_yaml(text)
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
    values = read_settings(document, SETTINGS, "", mistakes, _ELSEWHERE)
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
    values = read_settings(entry, SERVER_SETTINGS, path, mistakes)
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
