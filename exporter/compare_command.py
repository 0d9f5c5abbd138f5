"""The command `compare`: two files are held against each other, and it is told."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from exporter.comparison.compared import compare
from exporter.comparison.report import comparison_object, comparison_text
from exporter.diagnose.reports import read_run
from exporter.diagnosis.terminal import Paper
from exporter.standard_output import check_open, columns, put, shows_color

HELP = "say what one run gives of another, and what was changed between them"
DESCRIPTION = """\
Holds a candidate against a baseline, also of another layout (PP8 against TP8):
throughput, gain from batching, occupancy, energy, latencies, the server's
flags, and a sentence. Each file is a recording or what `diagnose --json`
printed."""
EPILOG = "exit status: 0 compared, 2 cannot tell, 3 an error"

EXIT_COMPARED = 0
EXIT_CANNOT_TELL = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what `compare` takes."""
    parser.add_argument("baseline", type=Path, metavar="BASELINE", help="what it is compared with")
    parser.add_argument("candidate", type=Path, metavar="CANDIDATE", help="what is compared")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the text"
    )


def run(arguments: argparse.Namespace) -> int:
    """Compares and prints; whether the throughputs could be compared is the exit code.

    Raises:
        ReportError: A file is neither a recording nor a report.
        RecordingError: A file is no recording this version can read.
        CannotPrintError: Standard output takes nothing.
    """
    check_open()
    comparison = compare(read_run(arguments.baseline), read_run(arguments.candidate))
    if arguments.json:
        put(json.dumps(comparison_object(comparison)) + "\n")
    else:
        put(comparison_text(comparison, Paper(shows_color(), columns())))
    return EXIT_CANNOT_TELL if comparison.throughput_ratio is None else EXIT_COMPARED
