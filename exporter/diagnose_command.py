"""The command `diagnose`: its arguments, its report on the terminal, its exit code."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from exporter.diagnose import diagnose_recording
from exporter.diagnosis.findings import Verdict
from exporter.diagnosis.report import as_json, as_text

HELP = "say why a pipeline is as fast as it is"
DESCRIPTION = """\
Says why a pipeline is as fast as it is: one verdict with its evidence and the gain to expect, what
to try next, and what could not be seen."""
EPILOG = "exit status: 0 healthy, 1 a fault found, 2 cannot tell, 3 an error"

EXIT_HEALTHY = 0
EXIT_FAULT = 1
EXIT_CANNOT_TELL = 2
_EXITS = {Verdict.HEALTHY: EXIT_HEALTHY, Verdict.CANNOT_TELL: EXIT_CANNOT_TELL}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `diagnose` takes."""
    parser.add_argument(
        "--recording", type=Path, required=True, metavar="FILE", help="what `record` has written"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the report"
    )


def run(arguments: argparse.Namespace) -> int:
    """Diagnoses and prints; the verdict is the exit code.

    Raises:
        RecordingError: The file is no recording this version can read.
    """
    diagnosis = diagnose_recording(arguments.recording)
    if arguments.json:
        sys.stdout.write(as_json(diagnosis) + "\n")
    else:
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        sys.stdout.write(as_text(diagnosis, color=color))
    return _EXITS.get(diagnosis.verdict, EXIT_FAULT)
