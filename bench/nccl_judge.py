"""Judges a run of `nccl_pipeline`: truth against what the exporter says, by each way of looking."""

from __future__ import annotations

import json
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean

from bench.nccl_levels import awake
from bench.nccl_picture import DRAWN, picture
from bench.nccl_scenarios import CALIBRATION, effective, named
from bench.nccl_tables import Row, Verdicted, tell_rows, tell_verdicts
from bench.nccl_truth import Play, Shares, Span, StageTruth, covered, read_truths
from bench.nccl_waiting import levels, seen, table
from exporter.diagnosis.verdict import Diagnosis
from exporter.pipeline.clock import StageSummary
from exporter.records import GpuLevels, Method

SETTLE_SECONDS = 1.0
"""At both ends of the load, not judged."""
PROBE = "probe"
BESIDE = (PROBE, CALIBRATION.name)
"""Played for the levels, not judged."""
Truths = dict[tuple[str, int], StageTruth]


def judge(output: Path, *, until: float) -> None:
    """Prints the tables and writes tables.md, results.json and picture.svg.

    Args:
        output: Where the run lies.
        until: Monotonic time after which no further scenario is judged.
    """
    plays, truths = read_truths(output / "truth.jsonl.gz")
    lines: list[str] = []

    def tell(text: str = "") -> None:
        print(text, flush=True)
        lines.append(text)

    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="nccl-judge-") as name:
        folder = Path(name)
        recordings = output / "recordings.tar"
        if recordings.exists():
            with tarfile.open(recordings) as archive:
                archive.extractall(folder, filter="data")
        known = _tell_probe(plays, folder, tell, results)
        known = _tell_levels(known, plays, truths, folder, tell)
        played = [play for play in plays if play.scenario not in BESIDE and "main" in play.phases]
        _tell_truth(played, truths, tell, results)
        rows, verdicts, timelines = _all_said(played, truths, folder, known, until)
    tell_rows(rows, tell)
    tell_verdicts(verdicts, tell)
    results["rows"] = [{**asdict(row), "worst": row.worst} for row in rows]
    results["verdicts"] = [asdict(each) for each in verdicts]
    (output / "results.json").write_text(json.dumps(results, indent=1))
    (output / "tables.md").write_text("\n".join(lines) + "\n")
    (output / "picture.svg").write_text(picture(played, truths, timelines))


# --- what truly was ----------------------------------------------------------------------------


def _tell_probe(
    plays: Sequence[Play], folder: Path, tell: Callable[..., None], results: dict[str, object]
) -> list[GpuLevels]:
    """What waiting looks like; the levels seen, none without GPUs."""
    probe = next((play for play in plays if play.scenario == PROBE), None)
    path = folder / f"{PROBE}.jsonl.gz"
    if probe is None or not path.exists():
        return []
    found = seen(path, probe)
    if not any(each.resident is not None for each in found):
        return []
    tell(
        "What a waiting NCCL receive looks like (stage 0 sends late; of `send`, odd stages are late)"
    )
    tell()
    for line in table(found):
        tell(line)
    tell()
    results["probe"] = [asdict(each) for each in found]
    return levels(found)


def _tell_levels(
    resting: list[GpuLevels],
    plays: Sequence[Play],
    truths: Truths,
    folder: Path,
    tell: Callable[..., None],
) -> list[GpuLevels]:
    """The levels that are given: those of the calibration, where it was played."""
    play = next((each for each in plays if each.scenario == CALIBRATION.name), None)
    path = folder / f"{CALIBRATION.name}.jsonl.gz"
    if play is None or "main" not in play.phases or not path.exists():
        return resting
    known = awake(resting, path, play, truths)
    for each in known:
        tell(f"GPU {each.gpu} with the links awake: waiting {each.waiting}, working {each.working}")
    tell()
    return known


def main_span(play: Play) -> Span:
    """The time of a play that is judged."""
    start, end = play.phases["main"]
    settle = min(SETTLE_SECONDS, (end - start) / 4)
    return start + settle, end - settle


def _tell_truth(
    played: Sequence[Play],
    truths: Truths,
    tell: Callable[..., None],
    results: dict[str, object],
) -> None:
    tell("Truth, and the polled gauge (mean error against resident and working; mean of |error|)")
    tell()
    tell(
        "| scenario | stage | working | waiting | idle | tokens/s | polled | less resident | less working | mean abs | titles found |"
    )
    tell("|" + "---|" * 11)
    rows = []
    for play in played:
        span = main_span(play)
        for stage in range(play.stages):
            truth = truths.get((play.scenario, stage))
            if truth is None:
                tell(f"| {play.scenario} | {stage} | no truth: {play.error} |" + " |" * 8)
                continue
            shares = truth.shares(*span)
            polled = gauge_error(truth, play.polled.get(stage, []), span)
            began, ended = play.phases["main"]
            cells = [
                *(f"{value:.3f}" for value in (shares.working, shares.waiting, shares.idle)),
                f"{play.tokens / (ended - began):.0f}",
                *("-" if value is None else f"{value:+.3f}" for value in polled),
                "-" if play.mapped is None else "yes" if play.mapped else "NO",
            ]
            tell(f"| {play.scenario} | {stage} | " + " | ".join(cells) + " |")
            rows.append([play.scenario, stage, asdict(shares), polled])
    tell()
    results["truth"] = rows


def gauge_error(
    truth: StageTruth, readings: Sequence[Span], span: Span
) -> tuple[float | None, float | None, float | None, float | None]:
    """The gauge's mean, that less the resident and the working share, and its mean error a reading.

    A reading is compared with the residency of the second before it.
    """
    inside = [(at, value) for at, value in readings if span[0] + 1.0 <= at <= span[1]]
    if not inside:
        return None, None, None, None
    mean = fmean(value for _, value in inside)
    whole = truth.shares(*span)
    errors = []
    for at, value in inside:
        resident = sum(covered(spans, at - 1.0, at) for spans in (truth.works, truth.waits))
        errors.append(abs(value - resident))
    return mean, mean - whole.working - whole.waiting, mean - whole.working, fmean(errors)


# --- what is said ------------------------------------------------------------------------------

Timelines = dict[tuple[str, int, str], list[tuple[float, float, float | None]]]


def _all_said(
    played: Sequence[Play],
    truths: Truths,
    folder: Path,
    known: Sequence[GpuLevels],
    until: float,
) -> tuple[list[Row], list[Verdicted], Timelines]:
    rows: list[Row] = []
    verdicts: list[Verdicted] = []
    timelines: Timelines = {}
    try:
        from bench.nccl_said import WAYS, said  # noqa: PLC0415  # needs aiohttp, which may be missing
    except ImportError as error:
        print(f"nothing is judged here ({error}); run --judge where the exporter is installed")
        return rows, verdicts, timelines
    for play in played:
        recording = folder / f"{play.scenario}.jsonl.gz"
        stages = [truths.get((play.scenario, stage)) for stage in range(play.stages)]
        if not recording.exists() or None in stages:
            continue
        if time.monotonic() > until - 10.0:
            print("the time is over: run --judge for the rest")
            break
        span = main_span(play)
        sampled = bool(play.clocks)
        for way, (_, given) in WAYS.items():
            if (given and not known) or (not sampled and way != "all"):
                continue
            found = said(recording, folder, way, known)
            for truth in stages:
                assert truth is not None
                row = _row(play, truth, way, found.stage(truth.stage, span))
                rows += [row] if row is not None else []
                if way in DRAWN:
                    timelines[play.scenario, truth.stage, way] = [
                        (float(s.second), own.working, _told(own))
                        for s in found.seconds
                        if (own := s.stages.get(truth.stage)) is not None
                    ]
            verdicts.append(_verdicted(play, way, found.diagnosis, [t for t in stages if t]))
    return rows, verdicts, timelines


def _told(own: StageSummary) -> float | None:
    """The waiting share of a second, if most of it was told."""
    return None if own.method is Method.RESIDENCY else own.waiting


def _row(
    play: Play,
    truth: StageTruth,
    way: str,
    found: tuple[Shares, dict[str, float], Span] | None,
) -> Row | None:
    if found is None:
        return None
    shares, methods, span = found
    return Row(play.scenario, truth.stage, way, truth.shares(*span), shares, methods)


def _verdicted(
    play: Play, way: str, diagnosis: Diagnosis, truths: Sequence[StageTruth]
) -> Verdicted:
    scenario, figures = named(play.scenario), diagnosis.figures
    expected = scenario.expected if play.stages > 1 else ("healthy", *scenario.expected)
    right = "yes" if diagnosis.verdict in expected else "WRONG"
    if diagnosis.verdict == "cannot_tell" and right != "yes":
        right = "not told"
    occupancy = figures.occupancy_ratio if figures.measured else figures.occupancy_at_most_ratio
    span = main_span(play)
    return Verdicted(
        play.scenario,
        way,
        str(diagnosis.verdict),
        diagnosis.confidence,
        tuple(map(str, diagnosis.also)),
        right,
        occupancy,
        figures.measured,
        fmean(truth.shares(*span).working for truth in truths),
        figures.slots.effective,
        effective(scenario.sizes(play.stages)),
    )
