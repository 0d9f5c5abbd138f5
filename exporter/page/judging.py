"""The newest records, looked at as `diagnose` looks at a recording. In a thread; pure but for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exporter.admission import Admission
from exporter.diagnosis.advice import advice
from exporter.diagnosis.measure import measure
from exporter.diagnosis.verdict import diagnose
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.diagnosis.wording import gain_text, sentence
from exporter.page.verdicts import RunningVerdict
from exporter.pipeline.clock import Second
from exporter.recent.records import RecentRecording
from exporter.records import Batch, ServerEvent, ServerFacts


def judged(
    found: RecentRecording, seconds: Mapping[PipelineKey, Sequence[Second]], now: float
) -> dict[PipelineKey, RunningVerdict]:
    """What `diagnose` says of each pipeline; its settled seconds come with it."""
    watch = watch_of(found)
    verdicts = {}
    for key, settled in seconds.items():
        watch.add_seconds(key, settled)
        diagnosis = diagnose(measure(watch, key))
        verdicts[key] = RunningVerdict(
            now,
            diagnosis.verdict,
            diagnosis.confidence,
            sentence(diagnosis),
            gain_text(diagnosis),
            tuple(advice(diagnosis)),
            tuple(diagnosis.missing),
            diagnosis.figures.window_seconds,
        )
    return verdicts


def watch_of(found: RecentRecording) -> Watch:
    """The records of a stretch of the past; lines are judged as they were when they came."""
    watch, admission = Watch(), Admission()
    for record in found.head:
        watch.fold(record)
        if isinstance(record, ServerFacts):
            admission.learn(record)
    for _, record in found.changes:
        watch.fold(record)
    for stretch in found.stretches:
        for record in stretch.records(found.since):
            watch.fold(record)
    for block in found.blocks:
        for line, _ in block.lines(found.since):
            made = admission.admit(line)
            if isinstance(made, Batch | ServerEvent):
                watch.fold(made)
    return watch
