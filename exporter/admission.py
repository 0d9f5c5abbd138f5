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

from functools import lru_cache

from exporter.records import (
    Batch,
    EventKind,
    LogLine,
    Record,
    Refusal,
    RefusedLine,
    ServerEvent,
    ServerFacts,
)
from exporter.sglang.batch_fields import MAX_QUEUED_REQUESTS
from exporter.sglang.batch_line import BatchLine
from exporter.sglang.launch_state import LaunchState, Place
from exporter.sglang.process_title import Role, ranks_named, role_of
from exporter.sglang_log import ArgsLine, CapacityLine, EventLine, ParsedLine, parse_line

MAX_RUNNING_REQUESTS = 65_536
MAX_PLACES = 1024
_OWN_ROLES = (Role.SCHEDULER, Role.MAIN)


class Admission:
    """Judges the log lines of all servers in the order they come; one for the whole process."""

    def __init__(self) -> None:
        self._servers: dict[str, LaunchState] = {}

    def admit(self, line: LogLine) -> Record | None:
        """What a line counts as: a batch, facts, an event, a refusal with its reason, or nothing."""
        server = self._servers.get(line.server)
        if server is None:
            server = self._servers[line.server] = LaunchState()
        parsed = parse_line(line.message)
        if type(parsed) is BatchLine:
            # The one that most lines take: a scheduler that is known prints as it did before.
            place = server.places.get((line.title, line.launch, parsed.rank_text))
            if place is not None and _in_bounds(parsed, server) and not line.facts_only:
                return _batch(line, parsed, place, verified=True)
        outcome = self._judge(line, parsed, server)
        if line.facts_only and not isinstance(outcome, ServerFacts):
            return None
        if isinstance(outcome, Refusal):
            return RefusedLine(line.server, line.logged_at, outcome)
        return outcome

    def _judge(
        self, line: LogLine, parsed: ParsedLine, server: LaunchState
    ) -> Record | Refusal | None:
        role = role_of(line.title)
        # Others may log under the same identifier, each from a unit of its own.
        tells_launch = role in _OWN_ROLES or not server.knows_schedulers
        if tells_launch and line.launch is not None and line.launch != server.launch:
            server.begin(line.launch)
        if role is Role.SCHEDULER:
            server.knows_schedulers = True
        if parsed is None or isinstance(parsed, Refusal):
            return parsed
        if isinstance(parsed, BatchLine):
            return _judge_batch(line, parsed, role, server)
        return _judge_rest(line, parsed, role, server)

    def learn(self, facts: ServerFacts) -> None:
        """Takes bounds known from elsewhere; the configuration's stay over all launches."""
        server = self._servers.setdefault(facts.server, LaunchState())
        if facts.origin == "configuration":
            server.configure(facts.facts)
        server.bound(facts.facts)

    def forget(self, server: str) -> None:
        """Drops what is known of a server."""
        self._servers.pop(server, None)


# --- where it runs -----------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _place(rank_text: str, title: str | None) -> tuple[Place, bool] | Refusal:
    """Where a scheduler runs, and whether its title says so; rank 0 where nothing names one."""
    ranks = ranks_named(rank_text)
    titled: dict[str, int] = {}
    if len(ranks) != rank_text.count(" "):  # the same kind twice
        return Refusal.RANK_MISMATCH
    if title is not None:
        titled = ranks_named(title)
        allowed = titled.keys() if titled else {"DP", "TP"}
        if not ranks.keys() <= allowed or any(titled.get(k, v) != v for k, v in ranks.items()):
            return Refusal.RANK_MISMATCH
        ranks = titled | ranks
    return Place(ranks.get("DP", 0), ranks.get("PP", 0), ranks.get("TP", 0)), bool(titled)


# --- batches -----------------------------------------------------------------------------------


def _judge_batch(
    line: LogLine, parsed: BatchLine, role: Role, server: LaunchState
) -> Batch | Refusal:
    place = _scheduler_place(line, parsed.rank_text, parsed.stamped, role, server)
    if isinstance(place, Refusal):
        return place
    if not _in_bounds(parsed, server):
        return Refusal.VALUE_OUT_OF_BOUNDS
    server.batches_seen = True
    if role is Role.SCHEDULER and len(server.places) < MAX_PLACES:
        server.places[line.title, line.launch, parsed.rank_text] = place
    return _batch(line, parsed, place, verified=role is Role.SCHEDULER)


def _batch(line: LogLine, parsed: BatchLine, place: Place, *, verified: bool) -> Batch:
    server, at, _, pid, *_ = line
    return Batch._make((server, at, parsed.mode, *place, pid, *parsed.figures, verified))


def _scheduler_place(
    line: LogLine, rank_text: str, stamped: bool, role: Role, server: LaunchState
) -> Place | Refusal:
    """The place of the scheduler that wrote a line, or why the line does not count."""
    if role is not Role.SCHEDULER:
        if role is not Role.UNKNOWN:
            return Refusal.NOT_SCHEDULER
        if server.knows_schedulers or not stamped:
            return Refusal.UNVERIFIABLE
    found = _place(rank_text, line.title)
    if isinstance(found, Refusal):
        return found
    place, titled = found
    return place if server.has_room(place, titled) else Refusal.RANK_OUT_OF_BOUNDS


def _in_bounds(parsed: BatchLine, server: LaunchState) -> bool:
    """Whether every figure is one that this server can print.

    A batch is at most what one scheduler runs at a time, so `max_running_requests` bounds the
    running and the new requests of a micro-batch, too.
    """
    most = server.sizes.get("max_running_requests", MAX_RUNNING_REQUESTS)
    figures = parsed.figures
    running, new = figures.running_reqs or 0, figures.new_seqs or 0
    return parsed.plausible and running <= most and new <= most


# --- facts and events --------------------------------------------------------------------------


def _judge_rest(
    line: LogLine, parsed: ArgsLine | CapacityLine | EventLine, role: Role, server: LaunchState
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


def _from_main(stamped: bool, role: Role, server: LaunchState) -> Refusal | None:
    if role is Role.UNKNOWN:
        return Refusal.UNVERIFIABLE if server.knows_schedulers or not stamped else None
    return None if role is Role.MAIN else Refusal.NOT_MAIN


def _judge_args(
    line: LogLine, parsed: ArgsLine, role: Role, server: LaunchState
) -> ServerFacts | Refusal | None:
    """The first arguments of a launch win.

    systemd names the launch. Without it, another main process means another launch; where not
    even the process is known, nothing tells a restart from a forgery, and the first stay.
    """
    if server.looked_back_at(line):
        return None
    if line.launch is None and role is Role.MAIN and server.is_another_main(line.pid):
        server.begin(None)
    started = server.fired_up or (line.launch is not None and server.batches_seen)
    if server.has_args or started:
        return Refusal.REPEATED_ARGS
    server.has_args, server.main_pid = True, line.pid
    if _binds(role, server):
        server.bound(parsed.facts)
    return server.record(line, parsed.facts, "server_args")


def _judge_fired_up(line: LogLine, role: Role, server: LaunchState) -> ServerEvent | Refusal:
    """A server fires up once a launch; where systemd names none, each main process is one."""
    is_known = line.launch is not None or line.pid == server.main_pid
    if server.fired_up and role is Role.MAIN and is_known and not server.looked_back_at(line):
        return Refusal.REPEATED_ARGS
    server.fired_up = True
    server.look_back_at(line)
    if role is Role.MAIN and server.main_pid is None:
        server.main_pid = line.pid
    return ServerEvent(line.server, line.logged_at, EventKind.FIRED_UP, pid=line.pid)


def _judge_capacity(
    line: LogLine, parsed: CapacityLine, role: Role, server: LaunchState
) -> ServerFacts | Refusal | None:
    """Capacity is printed while a server starts, by every stage; the largest one bounds."""
    if server.looked_back_at(line):
        return None
    if role is Role.SCHEDULER and (server.fired_up or server.batches_seen):
        return Refusal.REPEATED_ARGS
    requests = parsed.facts["max_running_requests"]
    if not isinstance(requests, int) or not 0 < requests <= MAX_RUNNING_REQUESTS:
        return Refusal.VALUE_OUT_OF_BOUNDS
    known = server.sizes.get("max_running_requests", 0)
    if requests > known and (known or _binds(role, server)):
        server.bound({"max_running_requests": requests})
    return server.record(line, parsed.facts, "capacity_line")


def _binds(role: Role, server: LaunchState) -> bool:
    """Whether facts become bounds.

    Those of an unknown process that come after its server's first batch may be forged: they
    inform, but no true line may fall out of bounds for them.
    """
    return role is not Role.UNKNOWN or not server.batches_seen
