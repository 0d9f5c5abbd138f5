"""Measures the exporter on a real GPU against a load whose busy intervals are known.

    python3 -m bench.h200_duty_cycle --output results

Runs eight rhythms, the exporter beside them as a process, and nvitop-exporter and nvidia-smi where
they are installed. Prints a table last; writes results.json, log.txt and the raw readings.
`--dry-run` does the same against the tests' fake driver, without a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.duty_cycle_loads import FakeLoad, Load, TorchLoad
from bench.duty_cycle_measurement import Comparison, Measurement
from bench.duty_cycle_truth import PATTERNS, read_truths
from bench.gpu_witnesses import NvidiaSmi, NvitopExporter, Witness
from tests.running import RunningExporter

PATTERN_SECONDS = 28.0
SPARE_SECONDS = 60.0
"""Over what the patterns need, before the run is given up."""
EXPORTER = "exporter"


class Log:
    """Says things on stdout and keeps them in a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def say(self, line: str = "") -> None:
        """One line."""
        print(line, flush=True)
        print(line, file=self._file, flush=True)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def measure(arguments: argparse.Namespace, log: Log) -> dict[str, Any]:
    """Runs everything once and returns what came out."""
    output, seconds = arguments.output, arguments.seconds
    began = datetime.now(UTC)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        truth = output / "truth.jsonl"
        load: Load = stack.enter_context(
            closing(
                FakeLoad(truth, seconds, folder) if arguments.dry_run else TorchLoad(truth, seconds)
            )
        )
        log.say(f"{load.gpu} {load.uuid}, {len(PATTERNS)} patterns of {seconds:g} s")
        exporter = stack.enter_context(
            RunningExporter(["serve", "--stdin"], folder, load.environment())
        )
        nvitop = NvitopExporter(load.uuid, load.environment(), output / "nvitop-exporter.log")
        witnesses: list[Witness] = [nvitop, NvidiaSmi(load.uuid, load.environment())]
        for witness in witnesses:
            stack.callback(witness.close)
        measurement = Measurement(load, exporter, witnesses)
        try:
            measurement.run(len(PATTERNS) * (seconds + 3) + SPARE_SECONDS)
        finally:
            (output / "exporter.log").write_text(exporter.said)
        (output / "metrics.txt").write_text(exporter.get("/metrics").text)
        truths = read_truths(truth)
    comparisons = [measurement.compare(truth) for truth in truths]
    readings = {witness.name: witness.readings for witness in witnesses}
    readings["ring"] = measurement.ring.samples
    scrapes = [asdict(scrape) for scrape in measurement.scrapes]
    (output / "readings.json").write_text(json.dumps({**readings, "scrapes": scrapes}))
    return {
        "date": began.isoformat(timespec="seconds"),
        "gpu": load.gpu,
        "driver": measurement.ring.driver_version(),
        "absent": {witness.name: witness.absent for witness in witnesses if witness.absent},
        "patterns": [asdict(comparison) for comparison in comparisons if comparison],
        "not_compared": [
            truth.pattern.label
            for truth, comparison in zip(truths, comparisons, strict=True)
            if comparison is None
        ],
        "mean_absolute_errors": mean_absolute_errors([c for c in comparisons if c]),
        "clock": {truth.pattern.label: truth.clock for truth in truths},
        "processes": measurement.processes,
        "exporter": measurement.about_the_exporter(),
    }


def mean_absolute_errors(comparisons: Sequence[Comparison]) -> dict[str, float | None]:
    """By who said it, over the patterns they gave a share for."""
    errors: dict[str, list[float]] = {EXPORTER: [c.exporter - c.truth for c in comparisons]}
    for comparison in comparisons:
        for name, share in comparison.others.items():
            given = errors.setdefault(name, [])
            if share is not None:
                given.append(share - comparison.truth)
    return {
        name: statistics.fmean(map(abs, given)) if given else None for name, given in errors.items()
    }


def number(value: float | None, form: str = ".4f") -> str:
    """A number for a table; "-" for one that is not known."""
    return "-" if value is None else format(value, form)


def report(results: dict[str, Any], log: Log) -> None:
    """Says costs first and the table last."""
    errors = results["mean_absolute_errors"]
    others = [name for name in errors if name != EXPORTER]
    for name, why in results["absent"].items():
        log.say(f"{name}: {why}; measured without it")
    about = results["exporter"]
    for call, cost in about["nvml_calls"].items():
        log.say(f"{call:45} {cost['count']:6d} calls {cost['mean_us']:10.1f} us each")
    for key in ("nvml_errors", "samples", "missed_seconds", "sources_up", "decode_lines"):
        log.say(f"{key}: {about[key]}")
    log.say(f"GPM answered: {'yes' if about['gpm_answered'] else 'no'}")
    for label, clock in results["clock"].items():
        if clock:
            rounded = ", ".join(f"{name} {value:.1f}" for name, value in clock.items())
            log.say(f"clock, {label}: {rounded}")
    for name, cost in results["processes"].items():
        log.say(
            f"{name}: {cost['cpu_percent']:.2f} % of a core, {cost['resident_mebibytes']:.1f} MiB"
        )
    log.say(f"\n{results['gpu']}, driver {results['driver']}, {results['date']}\n")
    columns = "".join(f" | {name} | error" for name in others)
    log.say(f"| pattern | window s | truth | exporter | error{columns} | ring RMSE |")
    log.say("|---" * (6 + 2 * len(others)) + "|")
    for row in results["patterns"]:
        log.say(table_row(row, others))
    for label in results["not_compared"]:
        log.say(f"{label}: no two scrapes inside it")
    for name in (EXPORTER, *others):
        ratio = ratio_to_exporter(errors, name)
        log.say(f"mean absolute error of {name}: {number(errors[name])}{ratio}")


def table_row(row: dict[str, Any], others: Sequence[str]) -> str:
    """One pattern; "~" where the window is known only within half a sample."""
    start, end = row["window"]
    cells = [row["pattern"], f"{'' if row['window_exact'] else '~'}{end - start:.1f}"]
    cells += [number(row["truth"])]
    for share in (row["exporter"], *(row["others"][name] for name in others)):
        error = None if share is None else share - row["truth"]
        cells += [number(share), number(error, "+.4f")]
    cells += [number(row["ring_rmse"])]
    return "| " + " | ".join(cells) + " |"


def ratio_to_exporter(errors: dict[str, float | None], name: str) -> str:
    """How many times the exporter's error another one's is."""
    own, other = errors[EXPORTER], errors[name]
    if name == EXPORTER or not own or other is None:
        return ""
    return f" ({other / own:.1f} times the exporter's)"


def main() -> None:
    """One command, one result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for what came out")
    parser.add_argument("--seconds", type=float, default=PATTERN_SECONDS, help="of one pattern")
    parser.add_argument("--dry-run", action="store_true", help="no GPU: a fake driver")
    arguments = parser.parse_args()
    arguments.output = arguments.output.resolve()
    arguments.output.mkdir(parents=True, exist_ok=True)
    with closing(Log(arguments.output / "log.txt")) as log:
        started_at = time.monotonic()
        results = measure(arguments, log)
        results["took_seconds"] = round(time.monotonic() - started_at, 1)
        (arguments.output / "results.json").write_text(json.dumps(results, indent=1))
        report(results, log)


if __name__ == "__main__":
    main()
