"""The program `diagnose`: feeds a recording into the model, watches, and hands out the outcome.

In: a recording, or what was watched live. Out: the diagnosis of one pipeline. Prints nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from exporter.diagnosis.measure import measure
from exporter.diagnosis.verdict import Diagnosis, diagnose
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.ingest import Ingest
from exporter.load.result import LoadResult
from exporter.recordings.reader import read_records
from exporter.records import LogLine, Record
from exporter.stage_map import StageMapper

log = logging.getLogger(__name__)

HARVEST_SECONDS = 60.0
"""How often settled seconds are taken from the model, which keeps 600 of them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The diagnosis of one pipeline, with what it was made from.

    Attributes:
        pipeline: Its server and dp_rank.
        points: What loads of ours measured meanwhile, in the order they were driven.
        experiment: What was tried after that; `None`: nothing.
        troubles: Why a log could not be read, a sentence each.
    """

    diagnosis: Diagnosis
    watch: Watch
    pipeline: PipelineKey
    points: tuple[LoadResult, ...] = ()
    experiment: Experiment | None = None
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Experiment:
    """The same load once more, under another value of a setting.

    Attributes:
        setting: As the server's version calls it.
        after: The outcome under the new value; `None`: nothing was measured under it.
        error: What went wrong, or that it was stopped by a signal; `None`: neither.
        failed: Whether something went wrong.
        restore_command: Puts the old value back, from a shell; `None`: the server has it again.
    """

    setting: str
    old: int
    new: int
    after: Outcome | None
    error: str | None = None
    failed: bool = False
    restore_command: str | None = None

    @property
    def tried_cap(self) -> int | None:
        """The cap that was measured; `None`: it came to no measurement."""
        return None if self.after is None else self.new


def diagnose_recording(path: Path) -> Outcome:
    """The outcome for the pipeline that printed most in a recording.

    Raises:
        RecordingError: It is no recording this version can read.
    """
    return diagnose_watch(watch_recording(path))


def diagnose_watch(
    watch: Watch, points: tuple[LoadResult, ...] = (), pipeline: PipelineKey | None = None
) -> Outcome:
    """The outcome for a pipeline, or for the one that printed most of those watched."""
    pipelines = watch.pipelines() if pipeline is None else [pipeline]
    if len(pipelines) > 1:
        server, dp_rank = pipelines[0]
        log.warning(
            "%d pipelines were seen; this is about server=%s dp_rank=%d",
            len(pipelines),
            server,
            dp_rank,
        )
    pipeline = pipelines[0] if pipelines else ("sglang", 0)
    return Outcome(diagnose(measure(watch, pipeline)), watch, pipeline, points)


def watch_recording(path: Path) -> Watch:
    """Everything that a recording holds for a diagnosis.

    Raises:
        RecordingError: It is no recording this version can read.
    """
    reader = read_records(path)
    watch = watch_records(reader.timed())
    if summary := reader.summary():
        log.warning("%s", summary)
    return watch


def watch_records(timed: Iterable[tuple[float, Record]]) -> Watch:
    """Everything that records with their places in time, oldest first, hold for a diagnosis."""
    watch, newest_at = Watch(), 0.0

    def tap(record: Record, _line: LogLine | None) -> None:
        watch.fold(record)

    ingest = Ingest((), mapper=StageMapper(()), clock=lambda: newest_at, tap=tap)
    harvested_at = None
    for at, record in timed:
        newest_at = max(newest_at, at)
        ingest.handle(record)
        if harvested_at is None or newest_at - harvested_at >= HARVEST_SECONDS:
            harvest(ingest, watch)
            harvested_at = newest_at
    ingest.finish()
    harvest(ingest, watch)
    return watch


def harvest(ingest: Ingest, watch: Watch) -> None:
    """Takes the settled seconds of every pipeline from the model."""
    for key in watch.pipelines():
        watch.add_seconds(key, ingest.model.seconds(*key))
