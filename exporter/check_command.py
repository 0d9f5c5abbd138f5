"""The command `check-config`: files are read as `serve` would, and their mistakes told."""

from __future__ import annotations

import argparse
from pathlib import Path

from exporter.config import ConfigError, load
from exporter.standard_output import put
from exporter.web_config.file import WebConfigFile

HELP = "check configuration files, name all mistakes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `check-config` takes."""
    parser.add_argument("file", type=Path, nargs="?", metavar="FILE", help="as for serve --config")
    parser.add_argument(
        "--web.config.file",
        dest="web_config_file",
        type=Path,
        metavar="FILE",
        help="as for serve; certificate and key are read and tried, too",
    )


def run(arguments: argparse.Namespace) -> None:
    """Checks and prints.

    Raises:
        ConfigError: There are mistakes, or no file is named.
        CannotPrintError: Standard output takes nothing.
    """
    if arguments.file is None and arguments.web_config_file is None:
        raise ConfigError("name a file, or one with --web.config.file")
    mistakes: list[str] = []
    said = ""
    if arguments.file is not None:
        try:
            names = ", ".join(server.name for server in load(arguments.file).servers)
            said += f"{arguments.file}: good (servers: {names})\n"
        except ConfigError as error:
            mistakes.append(str(error))
    if arguments.web_config_file is not None:
        try:
            WebConfigFile(arguments.web_config_file).close()
            said += f"{arguments.web_config_file}: good\n"
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    put(said)
