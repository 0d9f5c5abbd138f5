"""One SGLang server: what its log, its facts and its GPUs say, by stage and by pipeline."""

from __future__ import annotations

import math

from exporter.pipeline.server import ServerPipelines
from exporter.pipeline.server_facts import count_of, local_pp_ranks, micro_batch_slots
from exporter.records import (
    ActivityWindow,
    Batch,
    FactValue,
    Method,
    ServerFacts,
    StageGpu,
    StageMap,
)
from exporter.sglang.launch_state import MAX_STAGES
from exporter.stage_state import StageState

LONGEST_FORWARD_SECONDS = 30.0
"""A printed forward occupancy is not taken for more time than this."""


class ServerState:
    """One SGLang server: facts, stages as the log shows them, pipelines as the GPUs do."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.facts: dict[str, FactValue] = {}
        self.stages: dict[tuple[int, int], StageState] = {}
        self.stage_map: StageMap | None = None
        self.pipelines = ServerPipelines()
        self.unverified_lines = 0
        self.prints_iterations: bool | None = None
        self.prints_occupancy: bool | None = None
        self._stood_in: list[tuple[int, int]] = []
        self._left: dict[tuple[int, int], StageState] = {}

    def stage(self, dp_rank: int, pp_rank: int) -> StageState | None:
        """The stage, made when first heard of; `None` beyond the bound.

        One that an earlier launch had counts on where it was: as a new counter that has passed its
        old value before it is scraped it would look like one that never fell.
        """
        key = (dp_rank, pp_rank)
        stage = self.stages.get(key)
        if stage is None and len(self.stages) < MAX_STAGES:
            stage = self._left.pop(key, None) or StageState(dp_rank, pp_rank)
            self.stages[key] = stage
        return stage

    def _leave_all_from(self, pp_size: int) -> None:
        """Stages that the new launch does not have are shown no more."""
        for key in [key for key in self.stages if key[1] >= pp_size]:
            self._left[key] = self.stages.pop(key)
        for key in list(self._left)[:-MAX_STAGES]:
            del self._left[key]

    def fold_facts(self, record: ServerFacts) -> None:
        """Takes facts; a new launch clears what the one before said."""
        self.pipelines.fold_facts(record)
        if record.new_launch:
            self.facts = {}
            self.stage_map = None
            self._stood_in = []
            self.prints_iterations = self.prints_occupancy = None
            for stage in self.stages.values():
                stage.forget_gauges()
        self.facts.update(record.facts)
        pp_size, local = count_of(self.facts, "pp_size"), local_pp_ranks(self.facts)
        if pp_size is None or local is None:
            return
        if record.new_launch or record.origin == "configuration":
            self._leave_all_from(pp_size)
        for dp_rank in range(min(count_of(self.facts, "dp_size") or 1, MAX_STAGES)):
            for pp_rank in local:
                self.stage(dp_rank, pp_rank)

    def fold_forward_occupancy(self, batch: Batch, since: float | None) -> None:
        """Without any GPU to see, a stage is seen through SGLang's own forward timer: an upper bound.

        The figure of a line is taken for the time since the stage's line before.
        """
        ratio = batch.forward_occupancy_ratio
        mapped = self.stage_map is not None and self.stage_map.stages
        if ratio is None or since is None or mapped:
            return
        elapsed = batch.logged_at - since
        if not 0.0 < elapsed <= LONGEST_FORWARD_SECONDS:
            return
        keys = sorted(self.stages)
        if keys != self._stood_in:
            self._stood_in = keys
            places = (
                StageGpu(dp_rank, pp_rank, 0, gpu=-1 - number)
                for number, (dp_rank, pp_rank) in enumerate(keys)
            )
            self.pipelines.fold_map(StageMap(self.name, since, tuple(places), "forward_occupancy"))
        self.pipelines.fold_window(
            ActivityWindow(
                gpu=-1 - keys.index((batch.dp_rank, batch.pp_rank)),
                started_at=since,
                ended_at=batch.logged_at,
                working_ratio=min(ratio, 1.0),
                waiting_ratio=None,
                method=Method.FORWARD_OCCUPANCY,
            )
        )

    def is_one_rank(self) -> bool:
        """Whether it is known to have a single rank: one stage, no tensor parallelism."""
        sizes = (count_of(self.facts, "pp_size"), count_of(self.facts, "tp_size"))
        return sizes == (1, 1)

    def note_settings(self, batch: Batch) -> None:
        """Learns from a line which settings are on; once seen they are, until the next launch."""
        if not self.prints_iterations:
            self.prints_iterations = batch.forward_iteration is not None
        if not self.prints_occupancy:
            self.prints_occupancy = batch.forward_occupancy_ratio is not None

    def recommendations(self) -> set[str]:
        """Settings of this server that would show more."""
        wanted = set()
        if self.prints_iterations is False:
            wanted.add("SGLANG_LOG_FORWARD_ITERS")
        if self.prints_occupancy is False:
            wanted.add("SGLANG_ENABLE_METRICS_DEVICE_TIMER")
        interval = count_of(self.facts, "decode_log_interval")
        slots = micro_batch_slots(self.facts)
        if interval and slots and any(math.gcd(interval, n) > 1 for n in range(2, slots + 1)):
            wanted.add("decode_log_interval")
        return wanted
