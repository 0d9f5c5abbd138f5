"""The command `diagnose`: what the options ask for is done, reported, and told by the exit code."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import textwrap
from collections.abc import Callable

from exporter.config import Config
from exporter.diagnose import Outcome, diagnose_recording
from exporter.diagnose_options import (
    WATCH_SECONDS,
    check_together,
    driven_load,
    log_question,
    with_url,
)
from exporter.diagnosis.findings import Verdict
from exporter.diagnosis.report import COLUMNS, as_json, as_text
from exporter.live_diagnosis import attach, drive
from exporter.load.report import load_figures, load_lines, troubles
from exporter.log_diagnosis import diagnose_log

HELP = "say why a pipeline is as fast as it is"
DESCRIPTION = """\
Says why a pipeline is as fast as it is: one verdict with its evidence and the gain to expect, what
to try next, and what could not be seen."""
EPILOG = "exit status: 0 healthy, 1 a fault found, 2 cannot tell, 3 an error"

EXIT_HEALTHY = 0
EXIT_FAULT = 1
EXIT_CANNOT_TELL = 2
_EXITS = {Verdict.HEALTHY: EXIT_HEALTHY, Verdict.CANNOT_TELL: EXIT_CANNOT_TELL}


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
    check_together(arguments)
    outcome = _outcome(arguments, config)
    _report(outcome, json=arguments.json)
    return _EXITS.get(outcome.diagnosis.verdict, EXIT_FAULT)


def _outcome(arguments: argparse.Namespace, config: Callable[[], Config]) -> Outcome:
    if arguments.recording is not None:
        return diagnose_recording(arguments.recording)
    if arguments.log is not None:
        return diagnose_log(log_question(arguments, config))
    if arguments.attach:
        seconds = arguments.duration or WATCH_SECONDS
        return asyncio.run(attach(config(), seconds, save=arguments.save))
    load = driven_load(arguments)
    return asyncio.run(drive(with_url(config(), load), load, save=arguments.save))


def _report(outcome: Outcome, *, json: bool) -> None:
    points = outcome.points
    failures = troubles(points)
    if json:
        more: dict[str, object] = {"log_errors": list(outcome.troubles)} if outcome.troubles else {}
        if points:
            more |= {"load": load_figures(points), "load_errors": failures}
        sys.stdout.write(as_json(outcome.diagnosis, more) + "\n")
        return
    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    sys.stdout.write(as_text(outcome.diagnosis, color=color))
    if points:
        sys.stdout.write("\n" + "\n".join([*load_lines(points), *failures]) + "\n")
    for trouble in outcome.troubles:
        sys.stdout.write("\n" + textwrap.fill(trouble, COLUMNS, break_on_hyphens=False) + "\n")
