"""Which of SGLang's lines count: who wrote them, for which rank, within which bounds.

Whatever a user sends can reach the log, so a line is believed only as far as the process that
wrote it is known (`LogLine.title`, from journald):

* A batch, capacity, retraction, exception or watchdog line counts from a process titled
  `sglang::scheduler…` only. Ranks named by both text and title must be equal; ranks that only
  the title names (a custom logging format prints none) come from the title; ranks that only the
  text names are refused, except DP and TP where the title is bare, as it was before 0.4.4.
* `server_args=` and "fired up" count from the main process only, the arguments once a launch and
  before it serves.
* Where no process is known (files, containers, pipes) lines count as unverified; but once a
  server has shown a scheduler's title, a line without one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from exporter.batch_line import BatchLine, Figures
from exporter.process_title import Role, ranks_named, role_of
from exporter.records import (
    Batch,
    EventKind,
    FactValue,
    LogLine,
    Record,
    Refusal,
    RefusedLine,
    ServerEvent,
    ServerFacts,
)
from exporter.sglang_log import ArgsLine, CapacityLine, EventLine, parse_line

MAX_STAGES = 64
MAX_RANKS = 4096
MAX_UNVERIFIED_REPLICAS = 64
MAX_RUNNING_REQUESTS = 65_536
MAX_QUEUED_REQUESTS = 10_000_000
MAX_BATCH_TOKENS = 1_000_000_000
MAX_PENDING_TOKENS = 1_000_000_000_000
MAX_TOKENS_PER_SECOND = 1e9
MAX_ACCEPT_LENGTH = 1024.0
MAX_RATIO = 1.05
"""Printed shares can pass 1 by rounding and by measuring two things a moment apart."""


class Admission:
    """Judges the log lines of all servers in the order they come; one for the whole process."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}

    def admit(self, line: LogLine) -> Record | None:
        """What a line counts as: a batch, facts, an event, a refusal with its reason, or nothing."""
        server = self._servers.get(line.server)
        if server is None:
            server = self._servers[line.server] = _Server()
        if line.launch is not None and line.launch != server.launch:
            server.begin(line.launch)
        role = role_of(line.title)
        if role is Role.SCHEDULER:
            server.knows_schedulers = True
        parsed = parse_line(line.message)
        if parsed is None:
            return None
        if isinstance(parsed, BatchLine):
            outcome: Record | Refusal | None = _judge_batch(line, parsed, role, server)
        elif isinstance(parsed, Refusal):
            outcome = parsed
        else:
            outcome = _judge_rest(line, parsed, role, server)
        if line.facts_only and not isinstance(outcome, ServerFacts):
            return None
        if isinstance(outcome, Refusal):
            return RefusedLine(line.server, line.logged_at, outcome)
        return outcome

    def learn(self, facts: ServerFacts) -> None:
        """Takes bounds known from elsewhere; the configuration's stay over all launches."""
        server = self._servers.setdefault(facts.server, _Server())
        if facts.origin == "configuration":
            server.configured.update(_sizes(facts.facts))
        server.bound(facts.facts)


# --- where it runs -----------------------------------------------------------------------------


class _Place(NamedTuple):
    dp: int
    pp: int
    tp: int


@lru_cache(maxsize=1024)
def _place(rank_text: str, title: str | None) -> _Place | Refusal:
    """Where a scheduler runs, from the text's ranks and its title's; rank 0 where neither says."""
    ranks = ranks_named(rank_text)
    if len(ranks) != rank_text.count(" "):  # the same kind twice
        return Refusal.RANK_MISMATCH
    if title is not None:
        titled = ranks_named(title)
        allowed = titled.keys() if titled else {"DP", "TP"}
        if not ranks.keys() <= allowed or any(titled.get(k, v) != v for k, v in ranks.items()):
            return Refusal.RANK_MISMATCH
        ranks = titled | ranks
    return _Place(ranks.get("DP", 0), ranks.get("PP", 0), ranks.get("TP", 0))


# --- what is known of a server -----------------------------------------------------------------


@dataclass(slots=True)
class _Server:
    """One server's present launch, and the bounds its lines must keep."""

    launch: str | None = None
    main_pid: int | None = None
    args_from: tuple[float, int | None] | None = None
    """Instant and process of the arguments that won."""
    fired_up: bool = False
    batches_seen: bool = False
    knows_schedulers: bool = False
    """Stays: a source that knows processes does not forget how."""
    unannounced: bool = False
    """A new launch no record has told of yet."""
    configured: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    limits: _Place = _Place(MAX_RANKS, MAX_STAGES, MAX_RANKS)
    """Ranks stay below these."""
    unverified_limits: _Place = _Place(MAX_UNVERIFIED_REPLICAS, MAX_STAGES, MAX_RANKS)

    def begin(self, launch: str | None) -> None:
        """Starts a launch; the first one seen is not new to anybody."""
        had_one = self.launch is not None or self.args_from is not None or self.batches_seen
        self.unannounced = self.unannounced or had_one
        self.launch, self.main_pid, self.args_from = launch, None, None
        self.fired_up = self.batches_seen = False
        self._resize(dict(self.configured))

    def bound(self, facts: Mapping[str, FactValue]) -> None:
        """Takes sizes as bounds; what is configured wins over what is printed."""
        self._resize({**self.sizes, **_sizes(facts), **self.configured})

    def _resize(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        pp = min(sizes.get("pp_size", MAX_STAGES), MAX_STAGES)
        tp = min(sizes.get("tp_size", MAX_RANKS), MAX_RANKS)
        dp = min(sizes.get("dp_size", 1), MAX_RANKS)
        alone = dp == 1  # then SGLANG_DP_RANK may number single servers behind a router
        self.limits = _Place(MAX_RANKS if alone else dp, pp, tp)
        self.unverified_limits = _Place(MAX_UNVERIFIED_REPLICAS if alone else dp, pp, tp)

    def facts(self, line: LogLine, facts: dict[str, FactValue], origin: str) -> ServerFacts:
        """A record of new facts, which also announces a new launch if that is still to do."""
        new_launch, self.unannounced = self.unannounced, False
        return ServerFacts(line.server, line.logged_at, facts, origin, new_launch)


def _sizes(facts: Mapping[str, FactValue]) -> dict[str, int]:
    names = ("pp_size", "tp_size", "dp_size", "max_running_requests")
    return {
        name: value
        for name in names
        if isinstance(value := facts.get(name), int) and not isinstance(value, bool) and value > 0
    }


# --- batches -----------------------------------------------------------------------------------


def _judge_batch(line: LogLine, parsed: BatchLine, role: Role, server: _Server) -> Batch | Refusal:
    place = _scheduler_place(line, parsed.rank_text, parsed.stamped, role, server)
    if isinstance(place, Refusal):
        return place
    if not _in_bounds(parsed.figures, server.sizes.get("max_running_requests")):
        return Refusal.VALUE_OUT_OF_BOUNDS
    if not line.facts_only:
        server.batches_seen = True
    return Batch(
        line.server,
        line.logged_at,
        parsed.mode,
        place.dp,
        place.pp,
        place.tp,
        line.pid,
        *parsed.figures,
        role is Role.SCHEDULER,
    )


def _scheduler_place(
    line: LogLine, rank_text: str, stamped: bool, role: Role, server: _Server
) -> _Place | Refusal:
    """The place of the scheduler that wrote a line, or why the line does not count."""
    if role is not Role.SCHEDULER:
        if role is not Role.UNKNOWN:
            return Refusal.NOT_SCHEDULER
        if server.knows_schedulers or not stamped:
            return Refusal.UNVERIFIABLE
    place = _place(rank_text, line.title)
    if isinstance(place, Refusal):
        return place
    limits = server.limits if role is Role.SCHEDULER else server.unverified_limits
    if place.pp >= limits.pp or place.dp >= limits.dp or place.tp >= limits.tp:
        return Refusal.RANK_OUT_OF_BOUNDS
    return place


def _in_bounds(figures: Figures, max_running: int | None) -> bool:
    """Whether every figure is one that a server can print.

    A batch is at most what one scheduler runs at a time, so `max_running_requests` bounds the
    running and the new requests of a micro-batch, too.
    """
    most = MAX_RUNNING_REQUESTS if max_running is None else max_running
    return (
        0 <= (figures.running_reqs or 0) <= most
        and 0 <= (figures.new_seqs or 0) <= most
        and 0 <= (figures.queued_reqs or 0) <= MAX_QUEUED_REQUESTS
        and 0 <= (figures.retracted_reqs or 0) <= MAX_QUEUED_REQUESTS
        and 0 <= (figures.new_tokens or 0) <= MAX_BATCH_TOKENS
        and 0 <= (figures.cached_tokens or 0) <= MAX_BATCH_TOKENS
        and 0 <= (figures.pending_tokens or 0) <= MAX_PENDING_TOKENS
        and 0.0 <= (figures.gen_throughput_tokens_per_second or 0.0) <= MAX_TOKENS_PER_SECOND
        and 0.0 <= (figures.accept_length or 0.0) <= MAX_ACCEPT_LENGTH
        and 0.0 <= (figures.forward_occupancy_ratio or 0.0) <= MAX_RATIO
        and 0.0 <= (figures.forward_idle_occupancy_ratio or 0.0) <= MAX_RATIO
        and all(0.0 <= share <= MAX_RATIO for share in figures.token_usage_ratios.values())
    )


# --- facts and events --------------------------------------------------------------------------


def _judge_rest(
    line: LogLine, parsed: ArgsLine | CapacityLine | EventLine, role: Role, server: _Server
) -> ServerFacts | ServerEvent | Refusal | None:
    if isinstance(parsed, ArgsLine):
        return _from_main(parsed.stamped, role, server) or _judge_args(line, parsed, role, server)
    if isinstance(parsed, EventLine) and parsed.kind is EventKind.FIRED_UP:
        return _from_main(parsed.stamped, role, server) or _judge_fired_up(line, role, server)
    place = _scheduler_place(line, parsed.rank_text, parsed.stamped, role, server)
    if isinstance(place, Refusal):
        return place
    if isinstance(parsed, CapacityLine):
        return _judge_capacity(line, parsed, role, server)
    if parsed.count is not None and parsed.count > MAX_QUEUED_REQUESTS:
        return Refusal.VALUE_OUT_OF_BOUNDS
    return ServerEvent(
        line.server, line.logged_at, parsed.kind, *place, pid=line.pid, count=parsed.count
    )


def _from_main(stamped: bool, role: Role, server: _Server) -> Refusal | None:
    if role is Role.UNKNOWN:
        return Refusal.UNVERIFIABLE if server.knows_schedulers or not stamped else None
    return None if role is Role.MAIN else Refusal.NOT_MAIN


def _judge_args(
    line: LogLine, parsed: ArgsLine, role: Role, server: _Server
) -> ServerFacts | Refusal | None:
    """The first arguments of a launch win.

    systemd names the launch. Without it, another main process means another launch; where not
    even the process is known, nothing tells a restart from a forgery, and the first stay.
    """
    identity = (line.logged_at, line.pid)
    if identity == server.args_from:
        return None  # read again: looking back for facts, then from a saved position
    if line.launch is None and role is Role.MAIN and _is_another(line.pid, server):
        server.begin(None)
    started = server.fired_up or (line.launch is not None and server.batches_seen)
    if server.args_from is not None or started:
        return Refusal.REPEATED_ARGS
    server.args_from, server.main_pid = identity, line.pid
    server.bound(parsed.facts)
    return server.facts(line, parsed.facts, "server_args")


def _is_another(pid: int | None, server: _Server) -> bool:
    """Whether a main process is not the one that is known, or comes after an unseen start."""
    if pid is None or pid == server.main_pid:
        return False
    return server.main_pid is not None or server.batches_seen


def _judge_fired_up(line: LogLine, role: Role, server: _Server) -> ServerEvent:
    server.fired_up = True
    if role is Role.MAIN and server.main_pid is None:
        server.main_pid = line.pid
    return ServerEvent(line.server, line.logged_at, EventKind.FIRED_UP, pid=line.pid)


def _judge_capacity(
    line: LogLine, parsed: CapacityLine, role: Role, server: _Server
) -> ServerFacts | Refusal:
    """Capacity is printed while a server starts; a later one may only come from a restart.

    Where nothing tells a restart, the bound only ever grows, so that no forged line can make
    true ones fall out of it.
    """
    if role is Role.SCHEDULER and (server.fired_up or server.batches_seen):
        return Refusal.REPEATED_ARGS
    requests = parsed.facts["max_running_requests"]
    if not isinstance(requests, int) or not 0 < requests <= MAX_RUNNING_REQUESTS:
        return Refusal.VALUE_OUT_OF_BOUNDS
    if requests > server.sizes.get("max_running_requests", 0) or server.args_from is None:
        server.bound({"max_running_requests": requests})
    return server.facts(line, parsed.facts, "capacity_line")
