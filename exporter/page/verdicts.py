"""The running verdict: what `diagnose` would say of the last minute and a half, while somebody watches.

In: the newest records and the model's seconds. Out: a verdict for each pipeline, now and then.
The work is done in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from exporter.admission import Admission
from exporter.diagnosis.advice import advice
from exporter.diagnosis.findings import Verdict
from exporter.diagnosis.measure import measure
from exporter.diagnosis.verdict import diagnose
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.diagnosis.wording import gain_text, sentence
from exporter.pipeline.clock import Second
from exporter.recent.records import RecentRecording
from exporter.records import Batch, ServerEvent, ServerFacts

WINDOW_SECONDS = 90
"""What a running verdict speaks of."""
_MOST_PIPELINES = 8


@dataclass(frozen=True, slots=True)
class RunningVerdict:
    """What `diagnose` says of the newest seconds of one pipeline.

    Attributes:
        judged_at: In the records' clock.
        missing: What would have to be known for a surer one.
        window_seconds: The steady part it rests on; `None` where there was none.
    """

    judged_at: float
    verdict: Verdict
    confidence: float
    sentence: str
    gain: str
    advice: tuple[str, ...]
    missing: tuple[str, ...]
    window_seconds: float | None


class RunningVerdicts:
    """Judges when asked.

    Attributes:
        latest: By server and dp_rank; empty before the first look.
    """

    def __init__(
        self,
        recording: Callable[[int], RecentRecording],
        seconds: Callable[[str, int], Sequence[Second]],
    ) -> None:
        """`recording` gives the newest seconds as they are now, `seconds` the settled ones."""
        self.latest: Mapping[PipelineKey, RunningVerdict] = {}
        self._recording = recording
        self._seconds = seconds

    async def judge(self, pipelines: Sequence[PipelineKey], now: float) -> None:
        """Looks anew at some pipelines; the verdicts of others are forgotten."""
        keys = pipelines[:_MOST_PIPELINES]
        found = self._recording(WINDOW_SECONDS)
        seconds = {key: tuple(self._seconds(*key))[-WINDOW_SECONDS:] for key in keys}
        self.latest = await asyncio.to_thread(_judge, found, seconds, now)


def _judge(
    found: RecentRecording, seconds: Mapping[PipelineKey, Sequence[Second]], now: float
) -> dict[PipelineKey, RunningVerdict]:
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
