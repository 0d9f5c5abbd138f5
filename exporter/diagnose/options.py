"""The arguments of `diagnose`: what they are, which go together, and the load they ask for."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from exporter.config import DEFAULT_UNIT, Config, ConfigError
from exporter.diagnose import remote
from exporter.diagnose.experiment import Trial
from exporter.diagnose.from_log import LogQuestion
from exporter.diagnose.live import DrivenLoad
from exporter.load.detection import check_address
from exporter.load.micro_batch_cap import CAP, MOST_CAP, CapControl
from exporter.load.plan import LoadPlan
from exporter.load.tokens import ADMIN_KEY_VARIABLE, API_KEY_VARIABLE, find_token
from exporter.sources.journal.entries import JournalMatch

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
_WAYS = ("recording", "log", "attach", "url", "exporter")
_ELSEWHERE = {
    "recording": "--recording",
    "log": "--log",
    "attach": "--attach",
    "config": "--config",
    "unit": "--unit",
    "container": "--container",
    "identifier": "--identifier",
    "files": "--file",
    "stdin": "--stdin",
    "server": "--server",
    "journal_dir": "--journal-dir",
    "from_start": "--from-start",
    "no_nvml": "--no-nvml",
}
"""Options by attribute that say nothing where an exporter watches."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `diagnose` takes, without the sources."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--recording", type=Path, metavar="FILE", help="what `record` has written")
    what.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="a saved log: text, or the journal as `journalctl -o json --all` exports it; - is stdin",
    )
    what.add_argument(
        "--attach", action="store_true", help="watch the server on this host, without a load"
    )
    what.add_argument(
        "--url",
        help="drive a load against the server at this address and watch it by its log, which a "
        f"source below names (default: --unit {DEFAULT_UNIT})",
    )
    remote.add_arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the report"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the report with its pictures as a page too"
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
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="compare with this recording or JSON report too",
    )
    _add_load(parser)


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load (with --url)")
    points = load.add_mutually_exclusive_group()
    points.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="requests kept in flight (default: 32; with --log: that were, if known)",
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
    load.add_argument(
        "--experiment",
        metavar="KEY=VALUE",
        help=f"drive the load again with {CAP}=N set live, then put the old value back",
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


def check_together(arguments: argparse.Namespace) -> None:
    """Options that would do nothing are mistakes.

    Raises:
        ConfigError: Such an option was given.
    """
    _check_ways(arguments)
    if arguments.url is None:
        for name in (*_PLANNED, "sweep", "token_file", "experiment"):
            known = name == "concurrency" and arguments.log is not None
            if getattr(arguments, name) is not None and not known:
                raise ConfigError(_without_load(name, arguments))
    if arguments.experiment is not None:
        _check_experiment(arguments)
    for past in ("recording", "log"):
        for name in ("duration", "save"):
            if getattr(arguments, past) is not None and getattr(arguments, name) is not None:
                raise ConfigError(f"--{name} is about a live server, --{past} is of the past")
    if arguments.log is not None:
        _check_log(arguments)


def _without_load(name: str, arguments: argparse.Namespace) -> str:
    past = arguments.recording is not None or arguments.log is not None
    remedy = "what is past had its own" if past else "give --url too"
    if name == "concurrency":
        remedy = "it goes with --url or --log"
    return f"--{name.replace('_', '-')} is about a load: {remedy}"


def _check_experiment(arguments: argparse.Namespace) -> None:
    if arguments.sweep is not None:
        raise ConfigError(
            "--experiment drives one load twice: give --concurrency instead of --sweep"
        )
    if arguments.exporter is not None:
        raise ConfigError(
            "--experiment reads the server's log on this host: run it there, without --exporter"
        )
    _tried_value(arguments.experiment)


def _check_log(arguments: argparse.Namespace) -> None:
    for name in ("config", "files", "stdin", "journal_dir", "from_start", "server"):
        if getattr(arguments, name):
            option = {"files": "file"}.get(name, name.replace("_", "-"))
            raise ConfigError(f"--{option} is about a live server, --log is of the past")
    if arguments.concurrency is not None and arguments.concurrency < 1:
        raise ConfigError("--concurrency must be at least 1")


def log_question(arguments: argparse.Namespace, config: Callable[[], Config]) -> LogQuestion:
    """The saved log that is asked about.

    Raises:
        ConfigError: A source option names no server.
    """
    pick = None
    if arguments.unit or arguments.container or arguments.identifier:
        server = config().servers[0]
        pick = JournalMatch(
            unit=server.unit, container=server.container, identifier=server.identifier
        )
    return LogQuestion(arguments.log, arguments.concurrency, pick)


def _check_ways(arguments: argparse.Namespace) -> None:
    """Something to look at is named, and nothing of this host beside another's exporter."""
    if all(getattr(arguments, name) in (None, False) for name in _WAYS):
        raise ConfigError(f"say what to look at: --{', --'.join(_WAYS)}; --help tells more")
    if arguments.exporter is None:
        if arguments.exporter_ca is not None:
            raise ConfigError("--exporter-ca is about the exporter of --exporter: give that, too")
        return
    for name, option in _ELSEWHERE.items():
        if getattr(arguments, name):
            raise ConfigError(f"{option} is about sources here, --exporter has its own")


def driven_load(arguments: argparse.Namespace) -> DrivenLoad:
    """The load that the options ask for.

    Raises:
        NoTargetError: The address is none.
        PlanError: It cannot be driven.
    """
    check_address(arguments.url)
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


def _tried_value(text: str) -> int:
    key, _, value = text.partition("=")
    if key != CAP:
        raise ConfigError(
            f"--experiment {key}: only {CAP} can be tried on a running server, like "
            f"--experiment {CAP}=4"
        )
    if not (value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= MOST_CAP):
        raise ConfigError(
            f"--experiment {text}: {CAP} is a whole number from 1 to {MOST_CAP}; requests in flight "
            "over the number of stages is even"
        )
    return int(value)


def tried(arguments: argparse.Namespace, load: DrivenLoad) -> Trial | None:
    """What is to be tried on the loaded server; `None`: nothing.

    Raises:
        ConfigError: It cannot be tried on a running server.
        LoadError: The key for it cannot be used.
    """
    if arguments.experiment is None:
        return None
    admin = find_token(None, os.environ, ADMIN_KEY_VARIABLE)
    return Trial(CapControl(load.url, load.token, admin), _tried_value(arguments.experiment))


def with_url(config: Config, load: DrivenLoad) -> Config:
    """The configuration with the loaded server's own facts asked for, where it has one server."""
    if len(config.servers) != 1 or config.servers[0].url is not None:
        return config
    return replace(config, servers=(replace(config.servers[0], url=load.url, token=load.token),))
