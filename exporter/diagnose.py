"""The program `diagnose`: feeds a recording into the model, watches, and hands out the outcome.

In: a recording, or what was watched live. Out: the diagnosis of one pipeline. Prints nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from exporter.diagnosis.measure import measure
from exporter.diagnosis.verdict import Diagnosis, diagnose
from exporter.diagnosis.watch import PipelineKey, Watch
from exporter.ingest import Feed, Ingest
from exporter.load.result import LoadResult
from exporter.recordings.reader import RecordingReader, read_records
from exporter.records import LogLine, Record
from exporter.sources.recording import RecordingSource
from exporter.stage_map import StageMapper

log = logging.getLogger(__name__)

HARVEST_SECONDS = 60.0
"""How often settled seconds are taken from the model, which keeps 300 of them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The diagnosis of one pipeline, with what it was made from.

    Attributes:
        pipeline: Its server and dp_rank.
        points: What loads of ours measured meanwhile, in the order they were driven.
        troubles: Why a log could not be read, a sentence each.
    """

    diagnosis: Diagnosis
    watch: Watch
    pipeline: PipelineKey
    points: tuple[LoadResult, ...] = ()
    troubles: tuple[str, ...] = ()


def diagnose_recording(path: Path) -> Outcome:
    """The outcome for the pipeline that printed most in a recording.

    Raises:
        RecordingError: It is no recording this version can read.
    """
    return diagnose_watch(watch_recording(path))


def diagnose_watch(watch: Watch, points: tuple[LoadResult, ...] = ()) -> Outcome:
    """The outcome for the pipeline that printed most of those watched."""
    pipelines = watch.pipelines()
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
    watch = Watch()

    def tap(record: Record, _line: LogLine | None) -> None:
        watch.fold(record)

    ingest = Ingest(
        (Feed(RecordingSource(path)),),
        mapper=StageMapper(()),
        clock=lambda: reader.newest_at or 0.0,
        tap=tap,
    )
    _feed(reader, ingest, watch)
    if summary := reader.summary():
        log.warning("%s", summary)
    return watch


def _feed(reader: RecordingReader, ingest: Ingest, watch: Watch) -> None:
    harvested_at = None
    for record in reader:
        ingest.handle(record)
        now = ingest.clock()
        if harvested_at is None or now - harvested_at >= HARVEST_SECONDS:
            harvest(ingest, watch)
            harvested_at = now
    ingest.finish()
    harvest(ingest, watch)


def harvest(ingest: Ingest, watch: Watch) -> None:
    """Takes the settled seconds of every pipeline from the model."""
    for key in watch.pipelines():
        watch.add_seconds(key, ingest.model.seconds(*key))
