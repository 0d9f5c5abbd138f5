"""The command `diagnose`: what the options ask for is done, reported, and told by the exit code."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable

from exporter.comparison.compared import Comparison, compare
from exporter.comparison.report import comparison_object, comparison_text
from exporter.config import Config
from exporter.diagnose.experiment import drive_experiment
from exporter.diagnose.experiment_report import experiment_figures, experiment_lines
from exporter.diagnose.from_log import diagnose_log
from exporter.diagnose.html_report.command import command_line
from exporter.diagnose.html_report.output import report_at
from exporter.diagnose.html_report.page import page
from exporter.diagnose.live import attach, drive
from exporter.diagnose.options import (
    WATCH_SECONDS,
    check_together,
    driven_load,
    log_question,
    tried,
    with_url,
)
from exporter.diagnose.outcome import Outcome, diagnose_recording
from exporter.diagnose.remote import drive_beside, watch_exporter
from exporter.diagnose.remote_exporter import RemoteExporter
from exporter.diagnose.reports import more_figures, read_run, run_from
from exporter.diagnosis.findings import Verdict
from exporter.diagnosis.report import as_text, contract
from exporter.diagnosis.terminal import Paper
from exporter.load.report import load_lines, troubles
from exporter.load.result import EndReason
from exporter.standard_output import check_open, columns, put, shows_color

HELP = "say why a pipeline is as fast as it is"
DESCRIPTION = """\
Says why a pipeline is as fast as it is: one verdict with its evidence and the
gain to expect, what to try next, and what could not be seen."""
EPILOG = """\
examples:
  32 streams for a minute; surer with a single stream beside them
    diagnose --url http://127.0.0.1:30000
    diagnose --url http://127.0.0.1:30000 --sweep 1,32 --html report.html
  the traffic that is there, read here or by an exporter elsewhere
    diagnose --attach --duration 120
    diagnose --exporter http://gpu-host:10810
  what is past: a recording, or all that a log alone can tell
    diagnose --recording yesterday.jsonl.gz
    diagnose --log sglang.log --concurrency 32
  what the advice would bring, without a restart
    diagnose --url http://127.0.0.1:30000 --experiment pp_max_micro_batch_size=4

exit status: 0 healthy, 1 a fault found, 2 cannot tell, 3 an error"""

EXIT_HEALTHY = 0
EXIT_FAULT = 1
EXIT_CANNOT_TELL = 2
EXIT_FAILED = 3
"""An experiment failed or the server went away; what was measured until then is reported."""
_EXITS = {Verdict.HEALTHY: EXIT_HEALTHY, Verdict.CANNOT_TELL: EXIT_CANNOT_TELL}


def run(arguments: argparse.Namespace, config: Callable[[], Config]) -> int:
    """Diagnoses and prints; the exit code is the verdict, or that the run failed.

    `config` names the sources.

    Raises:
        RecordingError: The file is no recording this version can read.
        ReportError: The baseline is neither a recording nor a report.
        ConfigError: Options that do not go together, wrong sources, or a page that cannot be written.
        LoadError: The load cannot be driven, or measured nothing.
        NothingSeenError: The log cannot be read.
        ExporterError: The exporter cannot be asked.
        CannotRecordError: The recording cannot be written.
        FatalSourceError: A source cannot be read by this process.
        CannotPrintError: Standard output takes nothing.
    """
    check_open()
    check_together(arguments)
    # Before a load is driven: a wrong name costs nothing.
    baseline = read_run(arguments.baseline) if arguments.baseline is not None else None
    with report_at(arguments.html) as write_page:
        outcome = _outcome(arguments, config)
        comparison = None if baseline is None else compare(baseline, run_from(outcome))
        _report(outcome, comparison, as_json=arguments.json)
        if write_page is not None:
            command = command_line(arguments.argv)
            write_page(page(outcome, command, comparison=comparison, made_at=time.time()))
    if _failed(outcome):
        return EXIT_FAILED
    return _EXITS.get(outcome.diagnosis.verdict, EXIT_FAULT)


def _failed(outcome: Outcome) -> bool:
    if outcome.experiment is not None and outcome.experiment.failed:
        return True
    return any(point.ended_by is EndReason.ALL_FAILED for point in outcome.points)


def _outcome(arguments: argparse.Namespace, config: Callable[[], Config]) -> Outcome:
    if arguments.recording is not None:
        return diagnose_recording(arguments.recording)
    if arguments.log is not None:
        return diagnose_log(log_question(arguments, config))
    return asyncio.run(_live_outcome(arguments, config))


async def _live_outcome(arguments: argparse.Namespace, config: Callable[[], Config]) -> Outcome:
    seconds = arguments.duration or WATCH_SECONDS
    if arguments.attach:
        return await attach(config(), seconds, save=arguments.save)
    exporter = None
    if arguments.exporter is not None:
        exporter = RemoteExporter(arguments.exporter, arguments.exporter_ca, os.environ)
        if arguments.url is None:
            return await watch_exporter(exporter, seconds, save=arguments.save)
    load = driven_load(arguments)
    if exporter is not None:
        return await drive_beside(exporter, load, save=arguments.save)
    known = with_url(config(), load)
    trial = tried(arguments, load)
    if trial is not None:
        return await drive_experiment(known, load, trial, save=arguments.save)
    return await drive(known, load, save=arguments.save)


def _report(outcome: Outcome, comparison: Comparison | None, *, as_json: bool) -> None:
    points, experiment = outcome.points, outcome.experiment
    tried_cap = None if experiment is None else experiment.tried_cap
    if as_json:
        answer = contract(outcome.diagnosis, more_figures(outcome), tried_cap)
        if experiment is not None:
            answer["experiment"] = experiment_figures(outcome, experiment)
        if comparison is not None:
            answer["comparison"] = comparison_object(comparison)
        put(json.dumps(answer) + "\n")
        return
    paper = Paper(shows_color(), columns())
    parts = [as_text(outcome.diagnosis, paper, tried_cap=tried_cap)]
    if points:
        told = (line for each in troubles(points) for line in paper.wrapped(each))
        parts.append(_lines(*load_lines(points), *told))
    parts += [_lines(*paper.wrapped(trouble)) for trouble in outcome.troubles]
    if experiment is not None:
        parts.append(_lines(*experiment_lines(outcome, experiment, paper)))
    if comparison is not None:
        parts.append(comparison_text(comparison, paper))
    put("\n".join(parts))


def _lines(*lines: str) -> str:
    return "\n".join(lines) + "\n"
