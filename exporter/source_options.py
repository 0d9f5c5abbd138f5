"""The options that name what is read: one server's log, or a configuration file."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from exporter.config import DEFAULT_UNIT, Config, ConfigError, build, load


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Adds the options of all commands that read live sources."""
    group = parser.add_argument_group(
        "sources (one log; several servers need --config). Without any: --unit " + DEFAULT_UNIT
    )
    group.add_argument("--config", type=Path, metavar="FILE", help="read everything from a file")
    log = group.add_mutually_exclusive_group()
    log.add_argument("--unit", help="systemd unit of the server, read from the journal")
    log.add_argument(
        "--container", metavar="NAME", help="container whose log driver is journald, by name"
    )
    log.add_argument("--identifier", metavar="ID", help="syslog identifier, as systemd-cat -t sets")
    log.add_argument(
        "--file",
        action="append",
        dest="files",
        metavar="PATH",
        help="log file or glob: plain, Docker json-file or CRI; may be repeated",
    )
    log.add_argument("--stdin", action="store_true", help="read the log from a pipe")
    group.add_argument("--server", metavar="NAME", help="label `server` (default: from the source)")
    group.add_argument(
        "--journal-dir", type=Path, metavar="DIR", help="a journal elsewhere (default: this host's)"
    )
    group.add_argument(
        "--from-start", action="store_true", help="begin with the oldest entry, not with now"
    )
    group.add_argument("--no-nvml", action="store_true", help="do not read GPUs")


def config_of(arguments: argparse.Namespace) -> Config:
    """The configuration of the file, or that of the options.

    Raises:
        ConfigError: They do not go together, or one of them is wrong.
    """
    options = {
        key: value
        for key in ("unit", "container", "identifier", "files", "stdin")
        if (value := getattr(arguments, key))
    }
    if arguments.server is not None:
        options["name"] = arguments.server
    if arguments.config is None:
        if not options.keys() - {"name"}:
            options["unit"] = DEFAULT_UNIT
        config = build({"servers": [options]})
    elif options:
        raise ConfigError("--config names the servers: give no other source beside it")
    else:
        config = load(arguments.config)
    if arguments.journal_dir is not None:
        config = replace(config, journal_directory=arguments.journal_dir)
    if arguments.from_start:
        config = replace(config, from_start=True)
    if arguments.no_nvml:
        config = replace(config, nvml=False)
    return config
