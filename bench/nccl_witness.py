"""Sees a pipeline as the exporter would: GPUs, log lines, who runs where; a recording a scenario."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.gpu_witnesses import NvidiaSmi
from bench.nccl_scenarios import INTERVAL, Scenario
from bench.nccl_truth import Play
from exporter.config import ServerConfig
from exporter.recordings.writer import RecordingWriter
from exporter.records import (
    FactValue,
    GpuGauges,
    GpuIdentity,
    GpuProcesses,
    LoadEvent,
    LoadPhase,
    LogLine,
    Record,
    ServerFacts,
    SourceUnavailableError,
    StageGpu,
    StageMap,
    ThroughputReference,
)
from exporter.sglang_log import storable
from exporter.simulator.log_text import VERSION, scheduler_title
from exporter.sources.gpus.nvml import NvmlDriver
from exporter.sources.gpus.sampler import GpuSampler
from exporter.stage_map import StageMapper

SERVER = "sglang"
MAX_RUNNING_REQUESTS = 2048


class Witness:
    """Writes what it sees to the recording that is open.

    Attributes:
        gpus: Identities by index; empty where there is no NVML.
    """

    def __init__(self, stages: int) -> None:
        self.gpus: dict[int, GpuIdentity] = {}
        self._stages = stages
        self._writer: RecordingWriter | None = None
        self._play: Play | None = None
        self._sampler: GpuSampler | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._mapper = StageMapper((ServerConfig(SERVER),))
        self._found: frozenset[tuple[int, int]] = frozenset()
        self._gauges: dict[int, NvidiaSmi] = {}

    async def start(self) -> str | None:
        """Starts the sampler; returns why there is none."""
        sampler = GpuSampler(NvmlDriver())
        try:
            await sampler.open(None)
        except SourceUnavailableError as error:
            return str(error)
        self._sampler = sampler
        self._sampling = asyncio.create_task(sampler.run(self.see))
        return None

    async def stop(self) -> None:
        """Ends the sampler and those beside it."""
        for gauge in self._gauges.values():
            gauge.close()
        if self._sampler is not None and self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)
            await self._sampler.close()

    def open(self, path: Path, scenario: Scenario | None, play: Play, pids: list[int]) -> None:
        """Begins a recording; without a scenario one of the GPUs alone."""
        self._play = play
        for gpu, identity in self.gpus.items():
            if gpu not in self._gauges:
                self._gauges[gpu] = NvidiaSmi(identity.uuid, {})
        self._writer = writer = RecordingWriter(path, note=f"bench.nccl_pipeline {play.scenario}")
        for identity in self.gpus.values():
            writer.write(identity)
        if scenario is None:
            return
        at = play.phases.get("idle", (0.0, 0.0))[0]
        facts: dict[str, FactValue] = {
            "pp_size": self._stages,
            "tp_size": 1,
            "dp_size": 1,
            "pp_async_batch_depth": scenario.depth(self._stages),
            "decode_log_interval": INTERVAL,
            "max_running_requests": MAX_RUNNING_REQUESTS,
            "disable_cuda_graph": False,
            "version": "0.5.6" if scenario.old_idle else VERSION,
        }
        writer.write(ServerFacts(SERVER, at, facts, origin="recording"))
        if self.gpus:
            places = tuple(
                StageGpu(0, stage, 0, stage, self.gpus[stage].uuid, pids[stage])
                for stage in range(self._stages)
            )
            writer.write(StageMap(SERVER, at, places, origin="recording"))

    def close(self) -> None:
        """Ends the recording."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        if self._play is not None and self.gpus:
            self._keep_polled(self._play)
            expected = {(stage, stage) for stage in range(self._stages)}
            self._play.mapped = self._found == expected

    def _keep_polled(self, play: Play) -> None:
        """What the polled gauge read meanwhile."""
        began_at = play.phases["idle"][0] if "idle" in play.phases else float("inf")
        for gpu, gauge in self._gauges.items():
            play.polled[gpu] = [each for each in list(gauge.readings) if each[0] >= began_at]

    def load(self, at: float, phase: LoadPhase, requests: int, tokens: int, seconds: float) -> None:
        """An edge of the driven load."""
        if self._writer is not None:
            ended = phase is LoadPhase.END
            self._writer.write(
                LoadEvent(
                    at,
                    phase,
                    requests,
                    tokens if ended else None,
                    seconds if ended else None,
                    0 if ended else None,
                )
            )

    def reference(self, tokens_per_second: float) -> None:
        """What a single stream made."""
        if self._writer is not None:
            self._writer.write(ThroughputReference(1, tokens_per_second))

    def hear(self, stage: int, pid: int, at: float, text: str) -> None:
        """A line that a stage printed; what is none of SGLang's is not kept."""
        kept = storable(text)
        if self._writer is not None and kept is not None:
            line = LogLine(SERVER, at, text, pid, scheduler_title(stage))
            self._writer.write_log(line, kept)

    def see(self, record: Record) -> None:
        """What the sampler read."""
        if isinstance(record, GpuIdentity) and record.gpu < self._stages:
            self.gpus[record.gpu] = record
        if isinstance(record, GpuIdentity | GpuProcesses):
            for stage_map in self._mapper.fold(record):
                self._found = frozenset((each.pp_rank, each.gpu) for each in stage_map.stages)
        gpu = getattr(record, "gpu", None)
        if gpu is None or gpu >= self._stages:
            return
        if isinstance(record, GpuGauges) and self._play is not None and record.sm_clock_hertz:
            reading = (record.read_at, record.sm_clock_hertz)
            self._play.clocks.setdefault(gpu, []).append(reading)
        if self._writer is not None:
            self._writer.write(record)
