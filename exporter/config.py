"""The configuration: what is read from where, checked completely before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_PORT = 10810
DEFAULT_UNIT = "sglang.service"


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
