"""What the exporter says of a recording: its whole way, over the recording with parts left out."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.nccl_truth import Shares, Span
from bench.nccl_witness import SERVER
from exporter.diagnose.outcome import diagnose_watch
from exporter.diagnosis.verdict import Diagnosis
from exporter.diagnosis.watch import Watch
from exporter.ingest import Ingest
from exporter.kept_sources import Feed
from exporter.pipeline.clock import Second
from exporter.recordings.reader import read_records
from exporter.recordings.writer import RecordingWriter
from exporter.records import GpuLevels, LogLine, Record
from exporter.sources.recording import RecordingSource
from exporter.stage_map import StageMapper

WAYS: dict[str, tuple[frozenset[str], bool]] = {
    "all": (frozenset(), False),
    "power": (frozenset({"gpm"}), False),
    "gpm": (frozenset({"power"}), False),
    "all, levels": (frozenset(), True),
    "power, levels": (frozenset({"gpm"}), True),
    "gpm, levels": (frozenset({"power"}), True),
    "residency": (frozenset({"gpm", "power"}), False),
}
"""Types of lines left out, and whether the levels that the probe saw are given."""


@dataclass(frozen=True, slots=True)
class Said:
    """What was said of one scenario by one way."""

    diagnosis: Diagnosis
    seconds: Sequence[Second]

    def stage(self, stage: int, span: Span) -> tuple[Shares, dict[str, float], Span] | None:
        """Shares of a stage, the share of time by each method, and the time it is about."""
        inside = [s for s in self.seconds if span[0] <= s.second and s.second + 1 <= span[1]]
        own = [s.stages[stage] for s in inside if stage in s.stages]
        observed = sum(each.observed for each in own)
        if not own or not observed:
            return None
        methods: Counter[str] = Counter()
        for each in own:
            methods[each.method.value] += each.observed / observed  # type: ignore[assignment]  # shares
        shares = Shares(
            sum(each.working for each in own) / observed,
            sum(each.waiting or 0.0 for each in own) / observed,
        )
        return shares, dict(methods), (inside[0].second, inside[-1].second + 1.0)


def said(recording: Path, folder: Path, way: str, levels: Sequence[GpuLevels]) -> Said:
    """What the exporter says of a recording, looked at in one way."""
    left_out, given = WAYS[way]
    path = folder / "kept.jsonl"
    keep(recording, path, left_out, levels if given else ())
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
    for record in reader:
        ingest.handle(record)
    ingest.finish()
    seconds = ingest.model.seconds(SERVER, 0)
    for key in watch.pipelines():
        watch.add_seconds(key, ingest.model.seconds(*key))
    return Said(diagnose_watch(watch).diagnosis, seconds)


def keep(
    recording: Path, path: Path, left_out: frozenset[str], levels: Sequence[GpuLevels]
) -> None:
    """Writes a recording without some types of lines, and with levels at its head."""
    with gzip.open(recording, "rt", encoding="ascii") as lines, path.open("w") as kept:
        kept.write(next(lines))
        kept.writelines(_as_lines(path, levels))
        kept.writelines(line for line in lines if json.loads(line)["type"] not in left_out)


def _as_lines(path: Path, levels: Sequence[GpuLevels]) -> list[str]:
    aside = path.with_name("levels.jsonl")
    with RecordingWriter(aside) as writer:
        for each in levels:
            writer.write(each)
    return [line + "\n" for line in aside.read_text().split("\n")[1:] if line]
