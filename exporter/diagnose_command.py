"""The command `diagnose`: its arguments, its report on the terminal, its exit code."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from exporter.config import Config, ConfigError
from exporter.diagnose import diagnose_recording
from exporter.diagnosis.findings import Verdict
from exporter.diagnosis.report import as_json, as_text
from exporter.diagnosis.verdict import Diagnosis
from exporter.live_diagnosis import DrivenLoad, attach, drive
from exporter.load.plan import LoadPlan, PlanError
from exporter.load.report import load_figures, load_lines, troubles
from exporter.load.result import LoadResult
from exporter.load.tokens import API_KEY_VARIABLE, find_token

HELP = "say why a pipeline is as fast as it is"
DESCRIPTION = """\
Says why a pipeline is as fast as it is: one verdict with its evidence and the gain to expect, what
to try next, and what could not be seen."""
EPILOG = "exit status: 0 healthy, 1 a fault found, 2 cannot tell, 3 an error"

EXIT_HEALTHY = 0
EXIT_FAULT = 1
EXIT_CANNOT_TELL = 2
_EXITS = {Verdict.HEALTHY: EXIT_HEALTHY, Verdict.CANNOT_TELL: EXIT_CANNOT_TELL}

WATCH_SECONDS = 60.0
MAX_TOKENS = 4096

_PLANNED = {
    "concurrency": "concurrency",
    "requests": "requests",
    "max_tokens": "output_tokens",
    "prompt_tokens": "prompt_tokens",
    "warmup": "warmup_seconds",
    "rate": "rate_per_second",
}
"""Fields of the plan by option."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `diagnose` takes, without the sources."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--recording", type=Path, metavar="FILE", help="what `record` has written")
    what.add_argument(
        "--attach", action="store_true", help="watch the server on this host, without a load"
    )
    what.add_argument("--url", help="drive a load against the server at this address and watch it")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the report"
    )
    parser.add_argument(
        "--duration",
        type=_seconds,
        metavar="SECONDS",
        help=f"how long to watch or measure (default: {WATCH_SECONDS:.0f}; with --requests: no limit)",
    )
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="keep a recording: NAME.jsonl or NAME.jsonl.gz"
    )
    _add_load(parser)


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load (with --url)")
    points = load.add_mutually_exclusive_group()
    points.add_argument(
        "--concurrency", type=int, metavar="N", help="requests kept in flight (default: 32)"
    )
    points.add_argument(
        "--sweep", type=_counts, metavar="N,N,…", help="one load after the other, e.g. 1,8,32"
    )
    load.add_argument("--requests", type=int, metavar="N", help="end after so many answers")
    load.add_argument(
        "--max-tokens", type=int, metavar="N", help=f"output of a request (default: {MAX_TOKENS})"
    )
    load.add_argument(
        "--prompt-tokens", type=int, metavar="N", help="prompt of a request (default: 512)"
    )
    load.add_argument(
        "--warmup", type=float, metavar="SECONDS", help="load before it is measured (default: 30)"
    )
    load.add_argument(
        "--rate",
        type=float,
        metavar="R",
        help="open loop: requests a second, at most --concurrency in flight",
    )
    load.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"holds the server's API key (default: the variable {API_KEY_VARIABLE})",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to a day")
    return seconds


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers like 1,8,32") from error


def run(arguments: argparse.Namespace, config: Callable[[], Config]) -> int:
    """Diagnoses and prints; the verdict is the exit code. `config` names the sources.

    Raises:
        RecordingError: The file is no recording this version can read.
        ConfigError: Options that do not go together, or wrong sources.
        LoadError: The load cannot be driven, or measured nothing.
        NothingSeenError: The log cannot be read.
        CannotRecordError: The recording cannot be written.
        FatalSourceError: A source cannot be read by this process.
    """
    _check_together(arguments)
    points: tuple[LoadResult, ...] = ()
    if arguments.recording is not None:
        diagnosis = diagnose_recording(arguments.recording)
    elif arguments.attach:
        seconds = arguments.duration or WATCH_SECONDS
        diagnosis = asyncio.run(attach(config(), seconds, save=arguments.save))
    else:
        load = _load(arguments)
        known = config()
        # The probe takes a key from a file alone; without it, it would be turned away.
        if load.token is None or arguments.token_file is not None:
            known = _with_url(known, load.url, arguments.token_file)
        diagnosis, points = asyncio.run(drive(known, load, save=arguments.save))
    _print(diagnosis, points, json=arguments.json)
    return _EXITS.get(diagnosis.verdict, EXIT_FAULT)


def _check_together(arguments: argparse.Namespace) -> None:
    """Options that would do nothing are mistakes."""
    if arguments.url is None:
        for name in (*_PLANNED, "sweep", "token_file"):
            if getattr(arguments, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} is about a load: give --url too")
    if arguments.recording is not None:
        for name in ("duration", "save"):
            if getattr(arguments, name) is not None:
                raise ConfigError(f"--{name} is about a live server, --recording is of the past")


def _load(arguments: argparse.Namespace) -> DrivenLoad:
    if not arguments.url.startswith(("http://", "https://")):
        raise PlanError(
            f"cannot load {arguments.url!r}: an address begins with http:// or https://, "
            "like http://127.0.0.1:30000"
        )
    values = {
        field: getattr(arguments, option)
        for option, field in _PLANNED.items()
        if getattr(arguments, option) is not None
    }
    if arguments.sweep is not None:
        values["concurrency"] = min(arguments.sweep)
    values.setdefault("output_tokens", MAX_TOKENS)
    seconds = arguments.duration
    if seconds is None and arguments.requests is None:
        seconds = WATCH_SECONDS
    plan = LoadPlan(**values, duration_seconds=seconds)
    return DrivenLoad(
        arguments.url,
        plan,
        arguments.sweep or (plan.concurrency,),
        find_token(arguments.token_file, os.environ),
    )


def _with_url(config: Config, url: str, token_file: Path | None) -> Config:
    """The configuration with the loaded server's own facts asked for, where it has one server."""
    if len(config.servers) != 1 or config.servers[0].url is not None:
        return config
    return replace(config, servers=(replace(config.servers[0], url=url, token_file=token_file),))


def _print(diagnosis: Diagnosis, points: tuple[LoadResult, ...], *, json: bool) -> None:
    failures = troubles(points)
    if json:
        more = {"load": load_figures(points), "load_errors": failures} if points else {}
        sys.stdout.write(as_json(diagnosis, more) + "\n")
        return
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    sys.stdout.write(as_text(diagnosis, color=color))
    if points:
        sys.stdout.write("\n" + "\n".join([*load_lines(points), *failures]) + "\n")
