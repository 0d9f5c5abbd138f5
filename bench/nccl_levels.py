"""Levels of each GPU with the links awake: the calibration's recording against its truth.

A power sample counts where it and the one before it lie wholly in one work or one wait, less the
fifth of the one before that each holds. GPM's windows hold both: SM and DRAM activity of work are
the probe's, those of a wait what is left of a window's mean once the work in it is taken off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from bench.nccl_truth import Play, Span, StageTruth, covered
from exporter.activity.power_lag import LAG_RATIOS, PowerLag
from exporter.recordings.reader import read_records
from exporter.records import ActivityLevel, GpmWindow, GpuLevels, RingSamples, Signal

SAMPLE_SECONDS = 0.020
PURE_SECONDS = 2 * SAMPLE_SECONDS + 0.005
LEAST_WAIT = 0.2
"""Of a GPM window, so that what is left of its mean tells something."""


def awake(
    resting: Iterable[GpuLevels],
    recording: Path,
    play: Play,
    truths: Mapping[tuple[str, int], StageTruth],
) -> list[GpuLevels]:
    """The probe's levels, with what the calibration shows in their place where it does.

    Args:
        resting: Of the probe, where the links rest.
        recording: Of the calibration.
        play: The calibration's phases.
        truths: By scenario and stage; stage n runs on GPU n.
    """
    rings, windows = _read(recording)
    found = []
    for levels in resting:
        truth = truths.get((play.scenario, levels.gpu))
        if truth is None or levels.working is None or levels.waiting is None:
            found.append(levels)
            continue
        span = play.phases["main"]
        watts = rings.get(levels.gpu, [])
        working = replace(levels.working, watts=_pure(watts, truth.works, span))
        own = [each for each in windows if each.gpu == levels.gpu]
        waiting = ActivityLevel(
            _pure(watts, truth.waits, span),
            _left(
                ((w.started_at, w.ended_at, w.sm_ratio) for w in own), truth, span, working.sm_ratio
            ),
            _left(
                ((w.started_at, w.ended_at, w.dram_ratio) for w in own),
                truth,
                span,
                working.dram_ratio,
            ),
        )
        found.append(replace(levels, working=working, waiting=waiting))
    return found


def _read(recording: Path) -> tuple[dict[int, list[tuple[float, float]]], list[GpmWindow]]:
    rings: dict[int, list[tuple[float, float]]] = {}
    lags: dict[int, PowerLag] = {}
    windows = []
    for record in read_records(recording):
        if isinstance(record, RingSamples) and record.signal is Signal.POWER:
            lag = lags.setdefault(record.gpu, PowerLag())
            lag.ratio = LAG_RATIOS["NVIDIA H200"]
            rings.setdefault(record.gpu, []).extend(lag.undone(record).samples)
        elif isinstance(record, GpmWindow):
            windows.append(record)
    return rings, windows


def _pure(
    samples: Iterable[tuple[float, float]], spans: Sequence[Span], within: Span
) -> float | None:
    """Median of the samples that hold nothing else."""
    values = [
        watts
        for at, watts in samples
        if within[0] <= at <= within[1]
        and covered(spans, at - PURE_SECONDS, at) >= PURE_SECONDS * 0.999
    ]
    return median(values) if values else None


def _left(
    windows: Iterable[tuple[float, float, float | None]],
    truth: StageTruth,
    within: Span,
    working: float | None,
) -> float | None:
    """Median of a signal in waits, once that of work is taken off; `None` where nothing tells."""
    left = []
    for start, end, mean in windows:
        if start < within[0] or end > within[1] or mean is None or working is None:
            continue
        worked, waited = (
            covered(spans, start, end) / (end - start) for spans in (truth.works, truth.waits)
        )
        if waited >= LEAST_WAIT:
            left.append((mean - worked * working) / waited)
    return max(median(left), 0.0) if left else None
