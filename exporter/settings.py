"""Every setting of the configuration file: its name, its default, its meaning, how it is read.

The one table behind validation, documentation and the example file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.setting_values import (
    DEFAULT_PORT,
    DEFAULT_UNIT,
    read_facts,
    read_files,
    read_flag,
    read_listen,
    read_name,
    read_path,
    read_servers,
    read_stages,
    read_text,
    read_unit,
    read_url,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the configuration file.

    `default` is written as in YAML; empty where leaving the key out means something else than any
    value, which `help` then says.
    """

    key: str
    default: str
    help: str
    example: str
    read: Callable[[object], Any]


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "servers",
        f"[{{unit: {DEFAULT_UNIT}}}]",
        "The SGLang servers to watch; the settings of an entry are below.",
        "",
        read_servers,
    ),
    Setting(
        "listen",
        f":{DEFAULT_PORT}",
        "Where metrics are served: ADDRESS:PORT, [IPV6]:PORT (quoted), or :PORT for all addresses.",
        "127.0.0.1:10810",
        read_listen,
    ),
    Setting(
        "journal_directory",
        "",
        "Directory of the journal files. Left out: this machine's own journal.",
        "/var/log/journal/remote",
        read_path,
    ),
    Setting(
        "state_file",
        "",
        "Where reading positions are kept across restarts. Left out: positions.json in systemd's "
        "state directory, else in ~/.local/state/sglang-pipeline-exporter.",
        "/var/lib/sglang-pipeline-exporter/positions.json",
        read_path,
    ),
    Setting(
        "from_start",
        "false",
        "Whether a first start reads all that was logged before; otherwise it begins now.",
        "true",
        read_flag,
    ),
    Setting("nvml", "true", "Whether this machine's GPUs are read.", "false", read_flag),
)

SERVER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "name",
        "",
        "Value of the label `server`. Left out: the unit without .service, else the container, "
        "else the identifier, else sglang.",
        "kimi",
        read_name,
    ),
    Setting(
        "unit",
        "",
        "The systemd unit whose journal entries are read.",
        DEFAULT_UNIT,
        read_unit,
    ),
    Setting(
        "container",
        "",
        "The container whose journal entries are read (Docker's journald log driver).",
        "sglang",
        read_text,
    ),
    Setting(
        "identifier",
        "",
        "The syslog identifier whose journal entries are read (systemd-cat, logger).",
        "sglang",
        read_text,
    ),
    Setting(
        "files",
        "",
        "Log files to follow, as shell patterns: plain, Docker json-file or CRI.",
        "[/var/log/pods/*/sglang/*.log]",
        read_files,
    ),
    Setting(
        "stdin",
        "false",
        "Whether the log comes on standard input; one server only.",
        "true",
        read_flag,
    ),
    Setting(
        "url",
        "",
        "Base address of the server's HTTP API. Left out: it is never asked.",
        "http://127.0.0.1:30000",
        read_url,
    ),
    Setting(
        "token_file",
        "",
        "File that holds the server's API key, if it was started with one; needs `url`. "
        "A new key is taken without a restart.",
        "/etc/sglang-pipeline-exporter/kimi.token",
        read_path,
    ),
    Setting(
        "facts",
        "",
        "What holds of the server, whatever it says itself, by SGLang's argument names, and its "
        "`version`. Left out: the log and `url` tell.",
        "{pp_size: 8, decode_log_interval: 41}",
        read_facts,
    ),
    Setting(
        "stages",
        "",
        "GPUs of each pipeline stage, by pp_rank, in tp_rank order, as NVML index or UUID. "
        "Left out: discovered.",
        "{0: [0], 1: [1]}",
        read_stages,
    ),
)

INPUTS = ("unit", "container", "identifier", "files", "stdin")
"""Where a server's log is read from: exactly one of these."""


def table(settings: Sequence[Setting]) -> str:
    """Settings as a Markdown table, for the documentation."""
    rows = ["| setting | default | example | meaning |", "|---|---|---|---|"]
    for setting in settings:
        default = f"`{setting.default}`" if setting.default else "—"
        example = f"`{setting.example}`" if setting.example else "—"
        rows.append(f"| `{setting.key}` | {default} | {example} | {setting.help} |")
    return "\n".join(rows)
