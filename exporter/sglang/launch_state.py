"""What is known of a server's present launch, and the bounds that follow for its lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from exporter.records import FactValue, LogLine, ServerFacts

MAX_STAGES = 64
MAX_RANKS = 4096
MAX_UNTITLED_STAGES = 64
MAX_LOOKED_BACK = 4096


class Place(NamedTuple):
    """Ranks of one scheduler, or the limits they stay below."""

    dp: int
    pp: int
    tp: int


_UNBOUNDED = Place(MAX_RANKS, MAX_STAGES, MAX_RANKS)


@dataclass(slots=True)
class LaunchState:
    """One server, from one start to the next."""

    launch: str | None = None
    main_pid: int | None = None
    has_args: bool = False
    fired_up: bool = False
    batches_seen: bool = False
    knows_schedulers: bool = False
    """Stays over launches: a source that knows processes does not forget how."""
    unannounced: bool = False
    """A new launch no record has told of yet."""
    sizes: dict[str, int] = field(default_factory=dict)
    limits: Place = _UNBOUNDED
    """The ranks of every scheduler are below these."""
    places: dict[tuple[str | None, str | None, str], Place] = field(default_factory=dict)
    """Where a scheduler runs, by its title, its launch and the ranks it prints: of those of which a
    batch has counted in this launch, within these limits. Another of the same counts alike."""
    _configured: dict[str, int] = field(default_factory=dict)
    _untitled: set[tuple[int, int]] = field(default_factory=set)
    """Replicas and stages that no process title vouched for."""
    _looked_back: set[tuple[float, int | None]] = field(default_factory=set)

    def begin(self, launch: str | None) -> None:
        """Starts a launch; the first one seen is not new to anybody."""
        had_one = self.launch is not None or self.has_args or self.batches_seen
        self.unannounced = self.unannounced or had_one
        self.launch, self.main_pid = launch, None
        self.has_args = self.fired_up = self.batches_seen = False
        self._looked_back.clear()
        self._untitled.clear()
        self._resize(dict(self._configured))

    def is_another_main(self, pid: int | None) -> bool:
        """Whether a main process is not the known one, or starts after lines of one not seen."""
        if pid is None or pid == self.main_pid:
            return False
        return self.main_pid is not None or self.batches_seen

    def configure(self, facts: Mapping[str, FactValue]) -> None:
        """Takes the sizes that stay over all launches, whatever a server prints; all of them."""
        kept = {name: size for name, size in self.sizes.items() if name not in self._configured}
        self._configured = _sizes(facts)
        self._resize(kept | self._configured)

    def bound(self, facts: Mapping[str, FactValue]) -> None:
        """Takes sizes as bounds of this launch."""
        self._resize({**self.sizes, **_sizes(facts), **self._configured})

    def _resize(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        self.places.clear()
        self.limits = Place(
            min(sizes.get("dp_size", MAX_RANKS), MAX_RANKS),
            min(sizes.get("pp_size", MAX_STAGES), MAX_STAGES),
            min(sizes.get("tp_size", MAX_RANKS), MAX_RANKS),
        )

    def has_room(self, place: Place, titled: bool) -> bool:
        """Whether a scheduler can have these ranks, said by its title or by the text alone.

        A title may number a server of one replica as it likes: SGLANG_DP_RANK does, behind a
        router. Ranks of the text alone make a bounded number of stages.
        """
        dp, pp, tp = place
        limits = self.limits
        if pp >= limits.pp or tp >= limits.tp:
            return False
        if titled:
            return dp < (limits.dp if limits.dp > 1 else MAX_RANKS)
        if (dp, pp) not in self._untitled:
            if dp >= limits.dp or len(self._untitled) >= MAX_UNTITLED_STAGES:
                return False
            self._untitled.add((dp, pp))
        return True

    def record(self, line: LogLine, facts: dict[str, FactValue], origin: str) -> ServerFacts:
        """A record of new facts; it also announces a new launch if that is still to do."""
        self.look_back_at(line)
        new_launch, self.unannounced = self.unannounced, False
        return ServerFacts(line.server, line.logged_at, facts, origin, new_launch)

    def look_back_at(self, line: LogLine) -> None:
        """Remembers a line that was taken by looking back for facts; it may be read again."""
        if line.facts_only and len(self._looked_back) < MAX_LOOKED_BACK:
            self._looked_back.add((line.logged_at, line.pid))

    def looked_back_at(self, line: LogLine) -> bool:
        """Whether looking back for facts took this very line already; it is no repetition then."""
        return (line.logged_at, line.pid) in self._looked_back


def _sizes(facts: Mapping[str, FactValue]) -> dict[str, int]:
    names = ("pp_size", "tp_size", "dp_size", "max_running_requests")
    return {
        name: value
        for name in names
        if isinstance(value := facts.get(name), int) and not isinstance(value, bool) and value > 0
    }
