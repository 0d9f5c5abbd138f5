"""An outcome, or a file that holds a recording or a report → one side of a comparison.

In: what a diagnosis was made from, or a path. Out: the figures that a report has beside the
diagnosis' own, and the run that a comparison holds against another. Prints nothing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from exporter.comparison.run import ReportError, Run, run_of
from exporter.diagnose.outcome import Outcome, diagnose_recording
from exporter.diagnosis.report import contract
from exporter.diagnosis.server_gpus import server_gpus
from exporter.diagnosis.steady_window import loads_of
from exporter.load.report import load_figures, troubles
from exporter.recordings.lines import NumberedLines

MOST_BYTES = 8 << 20
"""A report of 64 stages has a hundredth of it."""


def more_figures(outcome: Outcome) -> dict[str, object]:
    """What a report tells of GPUs and loads beside the figures of the pipeline.

    Loads that are no longer in memory are told as far as a recording keeps them.
    """
    figures = outcome.diagnosis.figures
    gpus = server_gpus(outcome.watch, outcome.pipeline[0], figures.window)
    found: dict[str, object] = {"gpus": gpus}
    if outcome.troubles:
        found["log_errors"] = list(outcome.troubles)
    if outcome.points:
        return {
            **found,
            "load": load_figures(outcome.points),
            "load_errors": troubles(outcome.points),
        }
    loads = [
        {
            "concurrency": load.concurrency,
            "seconds": load.seconds,
            "output_tokens": load.output_tokens,
            "output_tokens_per_second": load.output_tokens / load.seconds
            if load.output_tokens is not None and load.seconds
            else None,
        }
        for load in loads_of(outcome.watch)
    ]
    return {**found, "load": loads} if loads else found


def run_from(outcome: Outcome) -> Run:
    """An outcome as a comparison takes it: what its report says."""
    return run_of(json.loads(json.dumps(contract(outcome.diagnosis, more_figures(outcome)))))


def read_run(path: Path) -> Run:
    """What a file says: a JSON report, or a recording, which is diagnosed first.

    Raises:
        ReportError: It is neither, or cannot be read; the message names the file.
        RecordingError: It is a recording of another version.
    """
    try:
        with contextlib.closing(NumberedLines(path, _refuse)) as lines:
            report = _report(lines)
        return run_from(diagnose_recording(path)) if report is None else run_of(report)
    except OSError as error:
        raise ReportError(f"cannot read {path}: {error.strerror}") from error
    except ReportError as error:
        raise ReportError(f"cannot compare with {path}: {error}") from error


def _report(lines: NumberedLines) -> object:
    """The object in a file; `None` if it begins as a recording does."""
    numbered: Iterator[tuple[int, bytes]] = iter(lines)
    _, first = next(numbered, (0, b""))
    with contextlib.suppress(ReportError):
        header = _parsed(first)
        if isinstance(header, dict) and header.get("type") == "header":
            return None
    held = [first]
    size = len(first)
    for _, line in numbered:
        size += len(line)
        if size > MOST_BYTES:
            raise ReportError(f"it has more than {MOST_BYTES >> 20} MiB and is no recording")
        held.append(line)
    if lines.damage is not None:
        raise ReportError(lines.damage.removesuffix("; what came before was used"))
    return _parsed(b"\n".join(held))


def _parsed(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ReportError(
            "it is neither a recording nor a report that `diagnose --json` printed"
        ) from error


def _refuse(_number: int, fault: str) -> None:
    raise ReportError(f"a line of it is {fault}")
