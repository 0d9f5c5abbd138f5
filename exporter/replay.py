"""The program `replay`: a recording as if it happened now, or the metrics of its end."""

from __future__ import annotations

import logging
from pathlib import Path

from exporter.collector import SnapshotCollector
from exporter.config import Config
from exporter.daemon import serve_until_stopped
from exporter.exposition_text import text_of
from exporter.ingest import Ingest
from exporter.kept_sources import Feed
from exporter.recent.records import RecentRecords
from exporter.recordings.reader import read_records
from exporter.sources.recording import RecordingSource
from exporter.stage_map import StageMapper

log = logging.getLogger(__name__)


def replay_once(path: Path) -> str:
    """The exposition of the instant of a recording's last record.

    Raises:
        RecordingError: It is no recording this version can read.
    """
    reader = read_records(path)
    source = RecordingSource(path)
    source.health = reader.health
    ingest = Ingest((Feed(source),), mapper=StageMapper(()), clock=lambda: reader.newest_at or 0.0)
    for made in reader:
        ingest.handle(made)
    summary = reader.summary()
    if summary:
        log.warning("%s", summary)
    ingest.finish()
    snapshot = ingest.snapshot()
    families = SnapshotCollector(snapshot, ingest.state(snapshot), None).collect()
    return text_of(families, open_metrics=False).decode()


async def replay(path: Path, config: Config) -> None:
    """Serves a recording at the speed it was made; after its end, its last instant."""
    source = RecordingSource(path)
    recent = RecentRecords(source.now)
    ingest = Ingest((Feed(source),), mapper=StageMapper(()), clock=source.now, tap=recent.keep)
    await serve_until_stopped(ingest, recent, config, f"replaying {path} on %s/metrics")
