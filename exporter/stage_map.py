"""Who runs where: the GPUs of each rank of each server.

Configuration wins over process titles, titles over SGLang's formula. Comes in: who the GPUs are,
what runs on them, what the servers' lines say. Goes out: a `StageMap` when a server's changed; none
for a server whose map a recording gives.
Pure: no clock, no /proc.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from exporter.config import ServerConfig
from exporter.records import (
    Batch,
    FactValue,
    GpuIdentity,
    GpuProcess,
    GpuProcesses,
    GpusRemoved,
    Record,
    ServerFacts,
    ServerRemoved,
    StageGpu,
    StageMap,
)
from exporter.sglang.process_title import Role, ranks_named, role_of
from exporter.sglang.rank_formula import place_ranks

MAX_PP_RANK = 63
MAX_RANK = 4095


class StageMapper:
    """Keeps the map of every server up to date."""

    def __init__(self, servers: Iterable[ServerConfig] = ()) -> None:
        self._servers = {server.name: _Server(server.name, server.stages) for server in servers}
        self._gpus: dict[int, GpuIdentity] = {}
        self._processes: dict[int, tuple[GpuProcess, ...]] = {}
        self._first_seen: dict[int, float] = {}
        self._now: float | None = None

    def fold(self, record: Record) -> Sequence[StageMap]:
        """Takes one record; returns the maps it changed, stamped with the newest instant seen."""
        if type(record) is Batch:
            server = self._servers.get(record.server) or self._server(record.server)
            changed = server.note_pid(record.pid, record.logged_at)
            self._pass_time(record.logged_at)
        elif isinstance(record, ServerFacts):
            changed = self._learn(record)
        elif isinstance(record, GpuProcesses):
            changed = self._see(record)
        elif isinstance(record, GpuIdentity):
            changed = self._gpus.get(record.gpu) != record
            self._gpus[record.gpu] = record
        elif isinstance(record, ServerRemoved | GpusRemoved):
            changed = self._forget(record)
        else:
            if isinstance(record, StageMap):
                self._server(record.server).is_given = True
            return ()
        return self._changed_maps() if changed else ()

    def configure(self, servers: Iterable[ServerConfig]) -> Sequence[StageMap]:
        """Takes the GPUs that a configuration now gives to stages; returns the maps it changed."""
        for config in servers:
            self._server(config.name).stages = config.stages
        return self._changed_maps()

    def _forget(self, record: ServerRemoved | GpusRemoved) -> bool:
        if isinstance(record, ServerRemoved):
            self._servers.pop(record.server, None)
            return False
        self._gpus.clear()
        self._processes.clear()
        self._first_seen.clear()
        self._pass_time(record.removed_at)
        return True

    def _server(self, name: str) -> _Server:
        server = self._servers.get(name)
        if server is None:
            server = self._servers[name] = _Server(name, {})
        return server

    def _pass_time(self, at: float) -> None:
        if self._now is None or at > self._now:
            self._now = at

    def _learn(self, record: ServerFacts) -> bool:
        server = self._server(record.server)
        if record.new_launch:
            # Whatever was there when the new launch began belongs to the one before; processes
            # first seen later are its own, also when its facts are read long after (looking back).
            old = {pid for pid, seen_at in self._first_seen.items() if seen_at < record.known_at}
            server.begin_launch(old & self._pids_of(server), record.known_at)
        server.facts.update(record.facts)
        self._pass_time(record.known_at)
        return True

    def _see(self, record: GpuProcesses) -> bool:
        titles = {process.pid: process.title for process in self._all_processes() if process.title}
        processes: dict[int, list[GpuProcess]] = {gpu: [] for gpu in record.gpus}
        for process in record.processes:
            if process.title is None and process.pid in titles:
                # /proc could not be read this time; the process is the same.
                process = _titled(process, titles[process.pid])  # noqa: PLW2901  # kept with it
            processes.setdefault(process.gpu, []).append(process)
        before = dict(self._processes)
        self._processes.update({gpu: tuple(found) for gpu, found in processes.items()})
        alive = {process.pid for process in self._all_processes()}
        self._first_seen = {pid: self._first_seen.get(pid, record.seen_at) for pid in alive}
        for server in self._servers.values():
            server.retired &= alive
        first = self._now is None
        self._pass_time(record.seen_at)
        return first or before != self._processes

    def _all_processes(self) -> Iterable[GpuProcess]:
        return (process for found in self._processes.values() for process in found)

    def _changed_maps(self) -> list[StageMap]:
        if self._now is None:
            return []  # no record with an instant yet
        maps = []
        for server in self._servers.values():
            if server.is_given:
                continue
            stages, origin = self._map(server)
            told = server.told
            if told is None or ((stages, origin) != told and (stages or told[0])):
                server.told = (stages, origin)
                maps.append(StageMap(server.name, self._now, stages, origin))
        return maps

    def _map(self, server: _Server) -> tuple[tuple[StageGpu, ...], str]:
        titled = self._by_title(server)
        if server.stages:
            return self._configured(server.stages, titled), "configuration"
        server.titled = server.titled or bool(titled)
        if server.titled:
            return titled, "process_title"
        return self._by_formula(server.facts), "formula"

    # --- configuration -------------------------------------------------------------------------

    def _configured(
        self, stages: Mapping[int, tuple[str, ...]], titled: tuple[StageGpu, ...]
    ) -> tuple[StageGpu, ...]:
        """The configured GPUs that are known; a PID where a title names the same rank there."""
        pids = {(stage.pp_rank, stage.tp_rank, stage.gpu): stage.pid for stage in titled}
        mapped = []
        for pp_rank, names in sorted(stages.items()):
            for tp_rank, name in enumerate(names):
                gpu = self._gpu_named(name)
                if gpu is not None:
                    pid = pids.get((pp_rank, tp_rank, gpu))
                    mapped.append(self._stage(0, pp_rank, tp_rank, gpu, pid))
        return tuple(mapped)

    def _gpu_named(self, name: str) -> int | None:
        for gpu, identity in self._gpus.items():
            if identity.uuid.lower() == name.lower():
                return gpu
        return int(name) if name.isdecimal() and int(name) in self._gpus else None

    def _stage(
        self, dp_rank: int, pp_rank: int, tp_rank: int, gpu: int, pid: int | None = None
    ) -> StageGpu:
        identity = self._gpus.get(gpu)
        return StageGpu(dp_rank, pp_rank, tp_rank, gpu, identity.uuid if identity else None, pid)

    # --- process titles ------------------------------------------------------------------------

    def _by_title(self, server: _Server) -> tuple[StageGpu, ...]:
        """Ranks from the titles of the server's schedulers; one claimed twice is left out."""
        own = self._pids_of(server) - server.retired
        places = defaultdict(list)
        for process in self._schedulers():
            ranks = _ranks(process) if process.pid in own else None
            if ranks is not None:
                places[ranks].append(process)
        return tuple(
            self._stage(*ranks, processes[0].gpu, processes[0].pid)
            for ranks, processes in sorted(places.items())
            if len(processes) == 1
        )

    def _schedulers(self) -> list[GpuProcess]:
        """Scheduler processes, each on the GPU where it holds most memory."""
        best: dict[int, GpuProcess] = {}
        for process in self._all_processes():
            if role_of(process.title) is not Role.SCHEDULER:
                continue
            other = best.get(process.pid)
            if other is None or (process.memory_bytes or 0) > (other.memory_bytes or 0):
                best[process.pid] = process
        return list(best.values())

    def _pids_of(self, server: _Server) -> set[int]:
        """The schedulers of a server: those of one parent with a process that wrote to its log.

        Before any has written, with a single server: all but the families of nobody.
        """
        families: dict[int, set[int]] = defaultdict(set)
        for process in self._schedulers():
            families[-process.pid if process.parent_pid is None else process.parent_pid].add(
                process.pid
            )
        wrote = server.pids.keys()
        own = [pids for parent, pids in families.items() if parent in wrote or pids & wrote]
        if not own and len(self._servers) == 1:
            own = list(families.values())
        return set().union(*own)

    # --- formula -------------------------------------------------------------------------------

    def _by_formula(self, facts: Mapping[str, FactValue]) -> tuple[StageGpu, ...]:
        """SGLang's own placement, where CUDA's order can be taken for NVML's.

        Not with GPUs of different models (CUDA counts the fastest first), and not if it names a
        GPU that is not there (the server sees others than NVML lists).
        """
        places = place_ranks(facts)
        models = Counter(identity.model for identity in self._gpus.values())
        if len(models) != 1 or any(place.ordinal not in self._gpus for place in places):
            return ()
        return tuple(
            self._stage(place.dp_rank, place.pp_rank, place.tp_rank, place.ordinal)
            for place in places
        )


class _Server:
    """What is known of one server's processes in its current launch."""

    def __init__(self, name: str, stages: Mapping[int, tuple[str, ...]]) -> None:
        self.name = name
        self.stages = stages
        self.is_given = False
        self.facts: dict[str, FactValue] = {}
        self.pids: dict[int, float] = {}
        self.retired: set[int] = set()
        self.titled = False
        self.told: tuple[tuple[StageGpu, ...], str] | None = ((), "")

    def note_pid(self, pid: int | None, at: float) -> bool:
        """A scheduler line of this PID was accepted; whether that is new."""
        if pid is None or pid in self.retired:
            return False
        new = pid not in self.pids
        self.pids[pid] = at
        return new

    def begin_launch(self, old_pids: set[int], at: float) -> None:
        """Forgets the launch before: its facts, its PIDs, and those processes while they last."""
        self.retired |= old_pids
        self.pids = {
            pid: wrote_at
            for pid, wrote_at in self.pids.items()
            if wrote_at > at and pid not in self.retired
        }
        self.facts = {}
        self.titled = False
        self.told = None  # whoever heard the old map drops it at a new launch


def _ranks(process: GpuProcess) -> tuple[int, int, int] | None:
    """(dp, pp, tp) of a scheduler's title, 0 where it does not say; `None` beyond any server."""
    ranks = ranks_named(process.title or "")
    dp, pp, tp = (ranks.get(kind, 0) for kind in ("DP", "PP", "TP"))
    return (dp, pp, tp) if pp <= MAX_PP_RANK and max(dp, tp) <= MAX_RANK else None


def _titled(process: GpuProcess, title: str) -> GpuProcess:
    return GpuProcess(process.gpu, process.pid, title, process.memory_bytes, process.parent_pid)
