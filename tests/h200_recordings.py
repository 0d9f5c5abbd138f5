"""The recordings of a real server on a real GPU, as records, with the residency ring as activity."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from exporter.admission import Admission
from exporter.recordings.reader import read_records
from exporter.records import ActivityWindow, LogLine, Method, Record, RingSamples, Signal

DATA = Path(__file__).parent / "data"


def records_of(name: str, folder: str = "h200") -> Iterator[Record | ActivityWindow]:
    """Admitted records in time order; utilization samples become windows by residency."""
    admission = Admission()
    last: dict[int, float] = {}
    for record in read_records(DATA / folder / f"{name}.jsonl.gz"):
        if isinstance(record, LogLine):
            admitted = admission.admit(record)
            if admitted is not None:
                yield admitted
        elif isinstance(record, RingSamples):
            if record.signal is Signal.UTILIZATION:
                yield from _windows(record, last)
        else:
            yield record


def _windows(record: RingSamples, last: dict[int, float]) -> Iterator[ActivityWindow]:
    for taken_at, share in record.samples:
        start = taken_at - record.nominal_seconds
        before = last.get(record.gpu)
        if before is not None and taken_at - before < 2 * record.nominal_seconds:
            start = before
        last[record.gpu] = taken_at
        yield ActivityWindow(record.gpu, start, taken_at, share, None, Method.RESIDENCY)
