"""The running verdict: what `diagnose` would say of the last minute and a half, while somebody watches.

In: the newest records and the model's seconds. Out: a verdict for each pipeline, now and then.
The work is done in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from exporter.pipeline.clock import Second
from exporter.recent.records import RecentRecording

if TYPE_CHECKING:
    from exporter.diagnosis.findings import Verdict
    from exporter.diagnosis.watch import PipelineKey

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
        self.latest = await asyncio.to_thread(_judged, found, seconds, now)


def _judged(
    found: RecentRecording, seconds: Mapping[PipelineKey, Sequence[Second]], now: float
) -> dict[PipelineKey, RunningVerdict]:
    # Not before somebody watches: an exporter that is only scraped needs none of it.
    from exporter.page.judging import judged  # noqa: PLC0415  # see above

    return judged(found, seconds, now)
