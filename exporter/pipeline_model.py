"""Records in time order → what is known of servers, stages and GPUs.

Pure: no clock, no input or output. The same records give the same snapshot, live or replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from exporter.activity.gpu import GpuActivity
from exporter.gpu_state import GpuSeries
from exporter.pipeline.clock import Second
from exporter.records import (
    ActivityWindow,
    Batch,
    EventKind,
    GpmWindow,
    GpuGauges,
    GpuIdentity,
    GpuLevels,
    GpuProcesses,
    GpusRemoved,
    GpuState,
    LoadEvent,
    Record,
    Refusal,
    RefusedLine,
    RingSamples,
    ServerEvent,
    ServerFacts,
    ServerRemoved,
    StageMap,
    XidError,
)
from exporter.server_state import ServerState
from exporter.snapshot import GpuRank, ServerSnapshot, Snapshot

_COUNTED_EVENTS = (EventKind.RETRACTION, EventKind.WATCHDOG)


class PipelineModel:
    """Folds records and answers with snapshots."""

    def __init__(self) -> None:
        self._servers: dict[str, ServerState] = {}
        self._gpus: dict[int, GpuSeries] = {}
        self._activities: dict[int, GpuActivity] = {}
        self._load: LoadEvent | None = None
        self._refused: Counter[Refusal] = Counter()
        self._unknown_fields = 0
        self._fold: dict[type, Callable[..., None]] = {
            Batch: self._fold_batch,
            ServerEvent: self._fold_event,
            ServerFacts: self._fold_facts,
            RefusedLine: lambda r: self._refused.update((r.reason,)),
            StageMap: self._fold_map,
            GpuProcesses: self._fold_processes,
            GpuIdentity: self._fold_identity,
            GpuLevels: self._fold_activity,
            RingSamples: self._fold_samples,
            GpmWindow: self._fold_gpm,
            LoadEvent: self._fold_load,
            GpuGauges: lambda r: self._gpu(r.gpu).fold_gauges(r),
            GpuState: lambda r: self._gpu(r.gpu).fold_state(r),
            XidError: lambda r: self._gpu(r.gpu).xid_errors.update((r.xid,)),
            ServerRemoved: self._fold_server_removed,
            GpusRemoved: self._fold_gpus_removed,
        }

    def server(self, name: str) -> ServerState:
        """The server of that name, known from now on."""
        server = self._servers.get(name)
        if server is None:
            server = self._servers[name] = ServerState(name)
            if self._load is not None:
                server.pipelines.fold_load(self._load)
        return server

    def fold(self, record: Record) -> None:
        """Takes one record; a kind that says nothing to the model is ignored."""
        fold = self._fold.get(type(record))
        if fold is not None:
            fold(record)

    def _gpu(self, gpu: int) -> GpuSeries:
        series = self._gpus.get(gpu)
        if series is None:
            series = self._gpus[gpu] = GpuSeries(gpu)
        return series

    def _fold_batch(self, batch: Batch) -> None:
        server = self.server(batch.server)
        stage = server.stage(batch.dp_rank, batch.pp_rank)
        if stage is None:
            self._refused[Refusal.RANK_OUT_OF_BOUNDS] += 1
            return
        self._unknown_fields += batch.unknown_fields
        if not batch.verified:
            server.unverified_lines += 1
        if stage.speaks(batch.tp_rank, batch.logged_at):
            server.note_settings(batch)
            if not self._gpus:
                server.fold_forward_occupancy(batch, since=stage.last_batch_at)
            stage.fold(batch)
            server.pipelines.fold_batch(batch)
            self._note_turn(server, batch)

    def _note_turn(self, server: ServerState, batch: Batch) -> None:
        """Tells the GPUs of the line's stage how often a pass begins there."""
        seconds = server.pipelines.turn_seconds(batch) if server.stage_map else None
        if seconds is None or server.stage_map is None:
            return
        for place in server.stage_map.stages:
            if (place.dp_rank, place.pp_rank) == (batch.dp_rank, batch.pp_rank):
                self._activity(place.gpu).note_turn(seconds, batch.logged_at)

    def _fold_event(self, event: ServerEvent) -> None:
        if event.kind is EventKind.SCHEDULER_EXCEPTION:
            self.server(event.server).pipelines.fold_exception(event.happened_at)
        if event.kind not in _COUNTED_EVENTS or event.pp_rank is None:
            return
        server = self.server(event.server)
        stage = server.stage(event.dp_rank or 0, event.pp_rank)
        if stage is None:
            self._refused[Refusal.RANK_OUT_OF_BOUNDS] += 1
        elif not stage.speaks(event.tp_rank or 0, event.happened_at):
            return
        elif event.kind is EventKind.RETRACTION:
            stage.retracted_requests += event.count or 0
        else:
            stage.watchdog_timeouts += 1

    def _fold_identity(self, record: GpuIdentity) -> None:
        series = self._gpu(record.gpu)
        if series.identity.uuid not in ("", record.uuid):
            # Another card in the slot: nothing of the one before is its own.
            self._activities.pop(record.gpu, None)
            series = self._gpus[record.gpu] = GpuSeries(record.gpu)
        series.fold_identity(record)
        activity = self._activity(record.gpu)
        activity.power_limit_watts = record.power_limit_watts
        activity.multiprocessors = record.multiprocessors
        activity.note_model(record.model)

    def _fold_samples(self, record: RingSamples) -> None:
        self._gpu(record.gpu).fold_samples(record)
        self._fold_activity(record)

    def _fold_gpm(self, record: GpmWindow) -> None:
        self._gpu(record.gpu).fold_gpm(record)
        self._fold_activity(record)

    def _fold_activity(self, record: RingSamples | GpmWindow | GpuLevels) -> None:
        self._hand_out(self._activity(record.gpu).fold(record))

    def _hand_out(self, windows: Iterable[ActivityWindow]) -> None:
        for window in windows:
            for server in self._servers.values():
                server.pipelines.fold_window(window)

    def _activity(self, gpu: int) -> GpuActivity:
        activity = self._activities.get(gpu)
        if activity is None:
            activity = self._activities[gpu] = GpuActivity(gpu)
        return activity

    def _fold_load(self, record: LoadEvent) -> None:
        self._load = record
        for server in self._servers.values():
            server.pipelines.fold_load(record)

    def _fold_map(self, record: StageMap) -> None:
        server = self.server(record.server)
        server.stage_map = record
        server.pipelines.fold_map(record)
        for place in record.stages:
            self._activity(place.gpu)
        self._find_peers()
        for place in record.stages:
            server.stage(place.dp_rank, place.pp_rank)
            series = self._gpu(place.gpu)
            if not series.identity.uuid and place.uuid:
                series.fold_identity(GpuIdentity(place.gpu, place.uuid))

    def _fold_facts(self, record: ServerFacts) -> None:
        self.server(record.server).fold_facts(record)
        self._find_peers()

    def _find_peers(self) -> None:
        """A kernel of the only rank of a server has nobody to wait for; any other may wait."""
        alone: dict[int, bool] = {}
        for server in self._servers.values():
            for place in server.stage_map.stages if server.stage_map else ():
                alone[place.gpu] = alone.get(place.gpu, True) and server.is_one_rank()
        for gpu, activity in self._activities.items():
            activity.has_peers = not alone.get(gpu, False)

    def _fold_processes(self, record: GpuProcesses) -> None:
        """A mapped process that left its GPU is gone, and so is what it claimed last."""
        running = {process.pid for process in record.processes}
        for server in self._servers.values():
            server.pipelines.fold_processes(record)
            if server.stage_map is None:
                continue
            for place in server.stage_map.stages:
                if place.pid is None or place.gpu not in record.gpus or place.pid in running:
                    continue
                stage = server.stage(place.dp_rank, place.pp_rank)
                if stage is not None and stage.pid == place.pid:
                    stage.forget_gauges()

    def _fold_server_removed(self, record: ServerRemoved) -> None:
        self._servers.pop(record.server, None)
        self._find_peers()

    def _fold_gpus_removed(self, _record: GpusRemoved) -> None:
        for activity in self._activities.values():
            self._hand_out(activity.flush())
        self._gpus.clear()
        self._activities.clear()

    def close(self, at: float) -> None:
        """Settles everything: the records have ended at `at`. Nothing is folded after."""
        for activity in self._activities.values():
            self._hand_out(activity.flush())
        for server in self._servers.values():
            server.pipelines.close(at)

    def levels(self) -> tuple[GpuLevels, ...]:
        """What is known of the cards' own levels, given or learned."""
        known = (activity.levels() for activity in self._activities.values())
        return tuple(levels for levels in known if levels is not None)

    def seconds(self, server: str, dp_rank: int) -> tuple[Second, ...]:
        """The settled seconds of a pipeline as they are kept, oldest first, at most 600."""
        known = self._servers.get(server)
        return known.pipelines.seconds(dp_rank) if known else ()

    def watts(self, gpu: int, second: int) -> float | None:
        """Mean power of a GPU over an epoch second of the newest ten minutes."""
        series = self._gpus.get(gpu)
        return series.power.second_mean(second) if series else None

    def snapshot(self, now: float) -> Snapshot:
        """Everything known at `now`, in the clock of the records."""
        for server in self._servers.values():
            server.pipelines.advance(now)
        ranks: dict[int, list[GpuRank]] = {}
        for server in self._servers.values():
            for place in server.stage_map.stages if server.stage_map else ():
                ranks.setdefault(place.gpu, []).append(
                    GpuRank(server.name, place.dp_rank, place.pp_rank, place.tp_rank)
                )
        return Snapshot(
            taken_at=now,
            servers=tuple(self._server_snapshot(s, now) for s in self._servers.values()),
            gpus=tuple(
                self._gpus[gpu].snapshot(now, tuple(ranks.get(gpu, ())))
                for gpu in sorted(self._gpus)
            ),
            refused_lines=dict(self._refused),
            unknown_fields=self._unknown_fields,
            recommendations=tuple(
                sorted({name for s in self._servers.values() for name in s.recommendations()})
            ),
        )

    def _server_snapshot(self, server: ServerState, now: float) -> ServerSnapshot:
        gpus: dict[tuple[int, int], list[int]] = {}
        for place in server.stage_map.stages if server.stage_map else ():
            gpus.setdefault((place.dp_rank, place.pp_rank), []).append(place.gpu)
        return ServerSnapshot(
            name=server.name,
            facts=dict(server.facts),
            stages=tuple(
                stage.snapshot(now, self._stage_utilization(stage_gpus, now), stage_gpus)
                for key, stage in sorted(server.stages.items())
                for stage_gpus in [tuple(gpus.get(key, ()))]
            ),
            pipelines=server.pipelines.figures(now),
            unverified_lines=server.unverified_lines,
            mapped_by=server.stage_map.origin if server.stage_map else None,
        )

    def _stage_utilization(self, gpus: tuple[int, ...], now: float) -> float | None:
        """Highest resident share of the stage's GPUs in the newest second complete on all.

        One rank unknown makes the stage unknown: the missing one may have been the busy one.
        """
        seconds = [self._gpus[gpu].utilization_second(now) for gpu in gpus if gpu in self._gpus]
        if not gpus or len(seconds) < len(gpus):
            return None
        known = [second for second in seconds if second is not None]
        if len(known) < len(seconds):
            return None
        means = [self._gpus[gpu].utilization.second_mean(min(known)) for gpu in gpus]
        shares = [mean for mean in means if mean is not None]
        return max(shares) if len(shares) == len(means) else None
