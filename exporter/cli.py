"""The command line: arguments in, one of the daemon's programs run, an exit code out."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import NoReturn, TypeAlias

from exporter import __version__, daemon
from exporter.config import DEFAULT_PORT, Config, ConfigError, parse_listen
from exporter.reload import ConfigSource
from exporter.source_options import add_sources, config_of
from exporter.standard_output import CannotPrintError, put

log = logging.getLogger(__name__)

PROGRAM = "sglang-pipeline-exporter"
EXIT_OK = 0
EXIT_ERROR = 3
"""A usage or run error; 1 and 2 are verdicts of `diagnose` and `compare`."""

_DESCRIPTION = """\
Shows what each pipeline stage of an SGLang server is doing: batch sizes, running requests and GPU
residency per stage, from the server's log and the GPU driver's own sample rings. The server needs
no change."""

_EPILOG = """\
first steps:
  sglang-pipeline-exporter demo                        no GPU, no SGLang: look around
  sglang-pipeline-exporter serve --unit sglang.service on the host that serves
  curl localhost:10810/metrics                         what Prometheus will see
  sglang-pipeline-exporter COMMAND --help              more about one command"""


# What `serve` does not need is imported where it is used: that is a third of its start and a tenth
# of its memory.
# ruff: noqa: PLC0415

_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"  # noqa: SLF001  # argparse names the type nowhere else


class _UsageError(Exception):
    """The arguments are wrong; the message names the command and the mistake."""


class _Parser(argparse.ArgumentParser):
    """Leaves the exit to `main`: argparse's own status, 2, is a verdict."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{self.prog}: {message}; --help tells more")


def _listen(text: str) -> tuple[str | None, int]:
    try:
        return parse_listen(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("listen: ")) from error


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 7 * 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to a week")
    return seconds


def _add_listen(parser: argparse.ArgumentParser, default: str = "") -> None:
    parser.add_argument(
        "--listen",
        type=_listen,
        metavar="ADDRESS:PORT",
        help=f"where to serve HTTP; :PORT means all addresses (default: {default}:{DEFAULT_PORT})",
    )
    parser.add_argument(
        "--web.config.file",
        dest="web_config_file",
        type=Path,
        metavar="FILE",
        help="TLS, passwords and headers, in the format of Prometheus exporters (docs/web-config.md)",
    )


def _add_serve(commands: _Commands) -> None:
    serve = commands.add_parser("serve", help="run the exporter beside a server")
    add_sources(serve)
    _add_listen(serve)
    serve.add_argument(
        "--state-file",
        type=Path,
        metavar="FILE",
        help="where reading positions are kept (default: $STATE_DIRECTORY or ~/.local/state)",
    )
    serve.add_argument(
        "--web.enable-reload",
        action="store_true",
        dest="web_enable_reload",
        help="let POST /-/reload read the configuration again, as SIGHUP does",
    )


def _add_demo(commands: _Commands) -> None:
    from exporter.simulator import SCENARIOS

    demo = commands.add_parser(
        "demo",
        help="run everything against a simulated PP8 server: no GPU, no SGLang",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="scenarios:\n"
        + "\n".join(f"  {name:<21} {scenario.description}" for name, scenario in SCENARIOS.items()),
    )
    demo.add_argument(
        "--scenario",
        default="healthy",
        choices=tuple(SCENARIOS),
        metavar="NAME",
        help="what the simulated server suffers from (default: healthy)",
    )
    _add_listen(demo, default="127.0.0.1")


def _add_recordings(commands: _Commands) -> None:
    record = commands.add_parser("record", help="write what the sources say to a file")
    record.add_argument(
        "--duration", type=_seconds, default=60.0, metavar="SECONDS", help="how long (default: 60)"
    )
    record.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="NAME.jsonl or NAME.jsonl.gz"
    )
    add_sources(record)

    replay = commands.add_parser("replay", help="serve a recording as if it happened now")
    replay.add_argument("recording", type=Path, metavar="FILE")
    replay.add_argument(
        "--once", action="store_true", help="feed all of it, print the metrics of its end and exit"
    )
    _add_listen(replay)


def _add_command(commands: _Commands, name: str, told: ModuleType) -> _Parser:
    return commands.add_parser(
        name,
        help=told.HELP,
        description=told.DESCRIPTION,
        epilog=told.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_diagnosis(commands: _Commands) -> None:
    from exporter import check_command, compare_command
    from exporter.diagnose import command, options

    diagnose = _add_command(commands, "diagnose", command)
    options.add_arguments(diagnose)
    add_sources(diagnose)
    compare_command.add_arguments(_add_command(commands, "compare", compare_command))
    check_command.add_arguments(commands.add_parser("check-config", help=check_command.HELP))


def _parser(*, serve_alone: bool = False) -> argparse.ArgumentParser:
    """All commands, or `serve` alone."""
    parser = _Parser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    _add_serve(commands)
    if not serve_alone:
        _add_demo(commands)
        _add_recordings(commands)
        _add_diagnosis(commands)
    return parser


def _config(arguments: argparse.Namespace) -> Config:
    return _with_listen(config_of(arguments), arguments)


def _with_listen(config: Config, arguments: argparse.Namespace) -> Config:
    listen = getattr(arguments, "listen", None)
    if listen is not None:
        config = replace(config, listen_host=listen[0], listen_port=listen[1])
    config = replace(config, web_config_file=getattr(arguments, "web_config_file", None))
    state_file = getattr(arguments, "state_file", None)
    return config if state_file is None else replace(config, state_file=state_file)


def _run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "serve":
            source = ConfigSource(arguments.config, lambda: _config(arguments))
            asyncio.run(daemon.serve(source, reload_over_http=arguments.web_enable_reload))
        case "demo":
            _run_demo(arguments)
        case "record":
            from exporter.recorder import record

            asyncio.run(record(_config(arguments), arguments.duration, arguments.output))
        case "diagnose":
            from exporter.diagnose.command import run as diagnose

            return diagnose(arguments, lambda: _config(arguments))
        case "compare":
            from exporter.compare_command import run as compare

            return compare(arguments)
        case "replay":
            _run_replay(arguments)
        case "check-config":
            from exporter.check_command import run as check

            check(arguments)
    return EXIT_OK


def _run_demo(arguments: argparse.Namespace) -> None:
    from exporter.demo import demo

    with tempfile.TemporaryDirectory(prefix="sglang-pipeline-demo-") as directory:
        # Everything is made up and nothing is protected: for this machine alone by default.
        made_up = Config(servers=(), listen_host="127.0.0.1")
        config = _with_listen(made_up, arguments)
        asyncio.run(demo(arguments.scenario, config, Path(directory)))


def _run_replay(arguments: argparse.Namespace) -> None:
    from exporter.recordings.reader import read_records
    from exporter.replay import replay, replay_once

    if arguments.once:
        put(replay_once(arguments.recording))
        return
    read_records(arguments.recording).close()  # a bad file is named before anything starts
    asyncio.run(replay(arguments.recording, _with_listen(Config(servers=()), arguments)))


def help_text() -> str:
    """What `--help` prints, for the documentation."""
    return _parser().format_help()


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S%z",
        stream=sys.stderr,
    )
    given = sys.argv[1:] if argv is None else argv
    try:
        arguments = _parser(serve_alone=given[:1] == ["serve"]).parse_args(given)
    except _UsageError as error:
        return _fail(str(error), json_wanted="--json" in given)
    arguments.argv = given
    command = f"{PROGRAM} {arguments.command}"
    json_wanted = getattr(arguments, "json", False)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        # Exit status 0 of these would say that all is well, or was compared.
        if arguments.command not in {"diagnose", "compare"}:
            return EXIT_OK
        return _fail(f"{command}: interrupted", json_wanted=json_wanted)
    except Exception as error:  # Python's own exit status, 1, would say that a fault was found.
        from exporter.failures import FAILURES

        if isinstance(error, FAILURES):
            return _fail(f"{command}: {error}", json_wanted=json_wanted)
        log.exception("failed unexpectedly; please report it with these lines")
        return _fail(f"{command}: failed: {type(error).__name__}", json_wanted=json_wanted)


def _fail(said: str, *, json_wanted: bool) -> int:
    """Says what ended a command, on stdout as one object too where that was asked for."""
    print(said, file=sys.stderr)
    if json_wanted:
        with contextlib.suppress(CannotPrintError):  # stderr has it
            put(json.dumps({"error": said.partition(": ")[2]}) + "\n")
    return EXIT_ERROR


if __name__ == "__main__":
    sys.exit(main())
