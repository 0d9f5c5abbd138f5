"""How the values of settings are read: what YAML gave to a value, or what would have been right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from exporter.records import FactValue
from exporter.sglang.known_facts import FACTS, Kind, expectation, is_usable

DEFAULT_PORT = 10810
DEFAULT_UNIT = "sglang.service"
LONGEST_NAME = 64
MOST_STAGES = 64

_SHOWN_CHARACTERS = 60
_LONGEST_TEXT = 4096
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,255}")
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_IPV6_HOST = re.compile(r"[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9._-]{1,15})?")
_GPU_UUID = re.compile(r"(GPU|MIG)-[A-Za-z0-9/-]{1,80}")
_LISTEN_FORMS = "ADDRESS:PORT, [IPV6]:PORT or :PORT, with a port from 0 to 65535"


class WrongValueError(Exception):
    """A value cannot be used.

    Attributes:
        mistakes: (place below the setting, what is wrong) for each.
    """

    def __init__(self, *mistakes: tuple[str, str]) -> None:
        super().__init__("; ".join(problem for _, problem in mistakes))
        self.mistakes = mistakes


def shown(value: object) -> str:
    """A value as it is repeated to people: short, on one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def read_name(value: object) -> str:
    """A text fit for a label: printable, at most 64 characters."""
    if isinstance(value, str) and value == value.strip() and value.isprintable() and value:
        if len(value) <= LONGEST_NAME:
            return value
        raise _wrong(value, f"of at most {LONGEST_NAME} characters")
    raise _wrong(value, "printable text without spaces around it")


def read_listen(value: object) -> tuple[str | None, int]:
    """Host (`None`: all addresses) and port."""
    text = value if isinstance(value, str) else ""
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if not colon or not is_port:
        raise _wrong(value, _LISTEN_FORMS)
    if host.startswith("[") and host.endswith("]") and _IPV6_HOST.fullmatch(host[1:-1]):
        return host[1:-1], int(port)
    if host and not _HOST.fullmatch(host):
        raise _wrong(value, _LISTEN_FORMS)
    return host or None, int(port)


def _wrong(value: object, expectation: str) -> WrongValueError:
    return WrongValueError(("", f"{shown(value)} is not {expectation}"))


def read_text(value: object) -> str:
    """Printable text, not empty."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _LONGEST_TEXT:
        raise _wrong(value, "printable text" if isinstance(value, str) else "text; quote it")
    return value


def read_unit(value: object) -> str:
    """A systemd unit's full name; one without a type is a service's."""
    if not isinstance(value, str) or not _UNIT.fullmatch(value):
        raise _wrong(value, "the name of a systemd unit, such as sglang.service")
    # As systemctl does.
    return value if value.endswith((".service", ".scope")) else f"{value}.service"


def read_flag(value: object) -> bool:
    """True or false, not a word for it."""
    if not isinstance(value, bool):
        raise _wrong(value, "true or false")
    return value


def read_path(value: object) -> Path:
    """A path; whether it exists shows when it is used."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise _wrong(value, "a path")
    return Path(value)


def read_files(value: object) -> tuple[str, ...]:
    """Paths or shell patterns, at least one."""
    if not isinstance(value, list) or not value:
        raise _wrong(value, "a list of paths, such as [/var/log/sglang/*.log]")
    mistakes = [
        (f"[{index}]", f"{shown(path)} is not a path")
        for index, path in enumerate(value)
        if not isinstance(path, str) or not path or "\0" in path
    ]
    if mistakes:
        raise WrongValueError(*mistakes)
    return tuple(value)


def read_url(value: object) -> str:
    """A base address, http or https, without anything secret and without a slash at its end."""
    text = value if isinstance(value, str) else ""
    try:
        parts = urlsplit(text)
        has_secret = "@" in parts.netloc or bool(parts.query)
        is_server = parts.scheme in {"http", "https"} and bool(parts.hostname)
        is_server = is_server and (parts.port is None or parts.port > 0)
    except ValueError:
        has_secret, is_server = "@" in text, False
    if has_secret:
        # Not repeated: what stands there may be a password.
        raise WrongValueError(("", "it must not hold a user, a password or a query"))
    if not is_server or not text.isprintable() or " " in text:
        raise _wrong(value, "an address such as http://127.0.0.1:30000")
    return text.rstrip("/")


def read_stages(value: object) -> dict[int, tuple[str, ...]]:
    """GPUs of each stage as text, by pp_rank, in tp_rank order."""
    if not isinstance(value, dict) or not value:
        raise _wrong(value, "a mapping of pp_rank to a list of GPUs, such as {0: [0], 1: [1]}")
    mistakes: list[tuple[str, str]] = []
    stages: dict[int, tuple[str, ...]] = {}
    for rank, gpus in value.items():
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < MOST_STAGES:
            mistakes.append(("", f"{shown(rank)} is not a pp_rank from 0 to {MOST_STAGES - 1}"))
        elif not isinstance(gpus, list) or not gpus:
            mistakes.append((f".{rank}", f"{shown(gpus)} is not a list of GPUs, in tp_rank order"))
        else:
            mistakes += [(f".{rank}[{i}]", _gpu_mistake(gpu)) for i, gpu in enumerate(gpus)]
            stages[rank] = tuple(str(gpu) for gpu in gpus)
            if len(set(stages[rank])) < len(gpus):
                mistakes.append((f".{rank}", "a GPU is named twice in one stage"))
    mistakes = [mistake for mistake in mistakes if mistake[1]]
    if mistakes:
        raise WrongValueError(*mistakes)
    return stages


def _gpu_mistake(gpu: object) -> str:
    """What is wrong with one GPU of a stage; empty if nothing is."""
    is_index = isinstance(gpu, int) and not isinstance(gpu, bool) and 0 <= gpu < 1024
    if is_index or (isinstance(gpu, str) and _GPU_UUID.fullmatch(gpu)):
        return ""
    return f"{shown(gpu)} is neither an NVML index nor a UUID that begins with GPU-"


def read_servers(value: object) -> list[Any]:
    """The entries of `servers`, not looked into yet."""
    if not isinstance(value, list) or not value:
        raise _wrong(value, f"a list of servers, such as [{{unit: {DEFAULT_UNIT}}}]")
    return value


def read_facts(value: object) -> dict[str, FactValue]:
    """Facts of a server, by the names SGLang gives them."""
    if not isinstance(value, dict) or not value:
        raise _wrong(value, "a mapping of facts to values, such as {pp_size: 8}")
    mistakes: list[tuple[str, str]] = []
    for name, fact in value.items():
        if not isinstance(name, str) or name not in FACTS:
            mistakes.append(("", f"{shown(name)} is no known fact; known: {', '.join(FACTS)}"))
        elif not is_usable(name, fact) or (FACTS[name] is Kind.NUMBER and fact < 0):
            # Texts are not repeated: one that was refused may hold a secret.
            said = "a text" if isinstance(fact, str) else shown(fact)
            mistakes.append((f".{name}", f"{said} is not {expectation(name)}"))
    if mistakes:
        raise WrongValueError(*mistakes)
    return dict(value)
