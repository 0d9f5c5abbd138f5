"""Sources kept running, lines judged, positions that belong to the snapshot."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from exporter import kept_sources
from exporter.config import ServerConfig
from exporter.ingest import Ingest
from exporter.kept_sources import Feed
from exporter.positions import PositionStore
from exporter.records import (
    FatalSourceError,
    LogLine,
    Record,
    Refusal,
    RefusedLine,
    ServerFacts,
    SourceHealth,
    SourceUnavailableError,
)
from exporter.sources import Emit, Position
from exporter.sources.server.probe import ServerProbe
from exporter.stage_map import StageMapper

T = 1_796_000_000.0
LINE = (
    "[2026-11-30 08:50:26 PP1] Decode batch, #running-req: 4, #token: 53, token usage: 0.10, "
    "cuda graph: True, gen throughput (token/s): 8.16, #queue-req: 0"
)


def line(pp: int = 1, title: str | None = "sglang::scheduler_PP1") -> LogLine:
    return LogLine("kimi", T, LINE.replace("PP1", f"PP{pp}"), pid=4000 + pp, title=title)


class Script:
    """A source that follows a script: records to emit, errors to raise, `None` to wait."""

    def __init__(self, *steps: Record | Exception | None, name: str = "journal:kimi") -> None:
        self.health = SourceHealth(name)
        self.steps = list(steps)
        self.opened_at: list[Position | None] = []
        self.read = 0
        self.closed = 0

    async def open(self, position: Position | None) -> None:
        self.opened_at.append(position)
        if self.steps and isinstance(self.steps[0], SourceUnavailableError):
            raise self.steps.pop(0)  # type: ignore[misc]
        self.health.up = True

    async def run(self, emit: Emit) -> None:
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, Exception):
                raise step
            if step is None:
                await asyncio.Event().wait()
            else:
                self.read += 1
                emit(step)

    def position(self) -> Position | None:
        return {"read": self.read} if self.opened_at else None

    async def close(self) -> None:
        self.closed += 1


def make(*sources: Script, **parts: object) -> Ingest:
    feeds = [Feed(s, "kimi", reads_log=s.health.name != "nvml") for s in sources]
    return Ingest(feeds, mapper=StageMapper(()), clock=lambda: T + 1, **parts)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_sources, "FIRST_RETRY_SECONDS", 0.0)


def batches(ingest: Ingest) -> int:
    return sum(
        mode.batches
        for server in ingest.snapshot().servers
        for stage in server.stages
        for mode in stage.modes
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # the condition is another task's, without an event
            await asyncio.sleep(0)


async def test_an_accepted_line_reaches_the_model_and_a_refused_one_only_its_count() -> None:
    ingest = make(Script(line(), line(title="/usr/bin/python3 -m sglang.launch_server")))
    await ingest.run()
    assert batches(ingest) == 1
    assert ingest.snapshot().refused_lines == {Refusal.NOT_SCHEDULER: 1}


async def test_a_source_that_breaks_is_opened_again_where_it_was() -> None:
    source = Script(line(), SourceUnavailableError("stale file"), line(), None)
    ingest = make(source)
    running = asyncio.create_task(ingest.run())
    await until(lambda: batches(ingest) == 2)
    assert source.opened_at == [None, {"read": 1}]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert source.closed == 2


async def test_a_bug_in_one_source_does_not_end_the_other() -> None:
    broken = Script(*(ValueError("a bug") for _ in range(3)), None, name="nvml")
    other = Script(line(), None)
    ingest = make(broken, other)
    running = asyncio.create_task(ingest.run())
    await until(lambda: len(broken.opened_at) == 4)
    assert batches(ingest) == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_fatal_error_ends_everything() -> None:
    ingest = make(Script(FatalSourceError("restart the exporter"), name="nvml"), Script(None))
    with pytest.raises(FatalSourceError, match="restart the exporter"):
        await ingest.run()


async def test_readiness_counts_gpus_only_once_they_were_read() -> None:
    gpus = Script(SourceUnavailableError("no driver"), None, name="nvml")
    log = Script(None)
    ingest = make(log, gpus)
    assert set(ingest.waiting_for()) == {"journal:kimi"}
    running = asyncio.create_task(ingest.run())
    await until(lambda: gpus.health.up and log.health.up)
    assert ingest.waiting_for() == {}
    gpus.health.up = False
    assert set(ingest.waiting_for()) == {"nvml"}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_position_of_a_scrape_is_that_of_its_snapshot(tmp_path: Path) -> None:
    state = tmp_path / "positions.json"
    positions = PositionStore(state)
    ingest = make(Script(line(), line()), positions=positions)
    await ingest.run()
    assert positions.position("journal:kimi") == {"read": 0}, "where it began"
    ingest.snapshot()
    ingest.scraped()
    assert positions.position("journal:kimi") == {"read": 2}
    positions.close()
    again = Script()
    reopened = PositionStore(state)
    await make(again, positions=reopened).run()
    assert again.opened_at == [{"read": 2}]
    reopened.close()


async def test_a_recorder_sees_each_line_with_what_it_became() -> None:
    seen: list[tuple[str, bool]] = []
    ingest = make(
        Script(line(), line(title="bash")),
        tap=lambda record, source: seen.append((type(record).__name__, source is not None)),
    )
    await ingest.run()
    assert seen == [("Batch", True), ("RefusedLine", True)]


async def test_a_damaged_state_file_is_a_gap(tmp_path: Path) -> None:
    state = tmp_path / "positions.json"
    state.write_text("{half a file")
    positions = PositionStore(state)
    log, gpus = Script(line()), Script(name="nvml")
    await make(log, gpus, positions=positions).run()
    assert (log.health.gaps, gpus.health.gaps) == (1, 0)
    positions.close()


def facts_of(ingest: Ingest) -> dict[str, object]:
    return dict(ingest.snapshot().servers[0].facts)


def told(origin: str, *, new_launch: bool = False, **facts: int) -> ServerFacts:
    return ServerFacts("kimi", T, facts, origin, new_launch)


def test_better_facts_outlast_lesser_ones_of_the_same_launch() -> None:
    """Configuration before what the server answers, that before what it printed."""
    ingest = make()
    ingest.learn(told("configuration", pp_size=8))
    ingest.handle(told("server_info", pp_size=4, max_running_requests=64))
    ingest.handle(told("server_args", pp_size=2, max_running_requests=0, tp_size=2))
    assert facts_of(ingest) == {"pp_size": 8, "max_running_requests": 64, "tp_size": 2}


def test_a_new_launch_voids_all_facts_but_the_configured_ones() -> None:
    ingest = make()
    ingest.learn(told("configuration", decode_log_interval=41))
    ingest.handle(told("server_info", pp_size=4))
    ingest.handle(told("server_args", new_launch=True, tp_size=2))
    assert facts_of(ingest) == {"decode_log_interval": 41, "tp_size": 2}


async def test_a_probe_is_asked_anew_at_a_new_launch_and_readiness_does_not_wait_for_it() -> None:
    probe = ServerProbe("kimi", "http://127.0.0.1:1")
    log = Script(None)
    feeds = [Feed(log, "kimi"), Feed(probe, "kimi", reads_log=False, optional=True)]
    ingest = Ingest(feeds, mapper=StageMapper(()), clock=lambda: T)
    running = asyncio.create_task(ingest.run())
    await until(lambda: log.health.up and probe.health.last_error is not None)
    assert ingest.waiting_for() == {}
    probe.settled.set()
    ingest.handle(told("server_args", new_launch=True, pp_size=8))
    assert not probe.settled.is_set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_probe_does_not_sit_out_its_pause_once_the_server_fired_up() -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.Event().wait()

    probe = ServerProbe("kimi", "http://127.0.0.1:1", sleep=pause)
    feeds = [Feed(Script(None), "kimi"), Feed(probe, "kimi", reads_log=False, optional=True)]
    ingest = Ingest(feeds, mapper=StageMapper(()), clock=lambda: T)
    running = asyncio.create_task(ingest.run())
    await until(lambda: pauses == [5.0])
    said = "[2026-11-30 08:50:30] The server is fired up and ready to roll!"
    ingest.handle(LogLine("kimi", T, said, pid=4000, title="python -m sglang.launch_server"))
    await until(lambda: pauses == [5.0, 10.0])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_record_that_breaks_the_model_costs_itself_alone() -> None:
    def tap(record: Record, _line: LogLine | None) -> None:
        if isinstance(record, RefusedLine):
            raise ValueError  # noqa: TRY004  # a bug

    ingest = make(Script(line(), line(title="bash"), line()), tap=tap)
    await ingest.run()
    assert batches(ingest) == 2
    assert ingest.crashes.counts["journal:kimi"] == 1


async def test_housekeeping_goes_on_after_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporter.ingest.TICK_SECONDS", 0.0)
    monkeypatch.setattr("exporter.crashes.FIRST_PAUSE_SECONDS", 0.0)
    ingest = make(Script(None))
    looks = 0

    def look(_snapshot: object) -> None:
        nonlocal looks
        looks += 1
        if looks < 3:
            raise ValueError

    monkeypatch.setattr(ingest._methods, "look", look)
    running = asyncio.create_task(ingest.run())
    await until(lambda: looks > 3)
    assert ingest.crashes.counts["housekeeping"] == 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class ForgetsWhenClosed(Script):
    """Has a position only while it is open, as files have."""

    def __init__(self, *steps: Record | Exception | None) -> None:
        super().__init__(*steps)
        self.is_open = False

    async def open(self, position: Position | None) -> None:
        await super().open(position)
        self.is_open = True

    def position(self) -> Position | None:
        return {"read": self.read} if self.is_open else None

    async def close(self) -> None:
        self.is_open = False


async def test_a_scrape_while_a_source_is_down_keeps_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the scrape shows was read before the source broke: it must not be read again."""
    monkeypatch.setattr(kept_sources, "FIRST_RETRY_SECONDS", 1000.0)
    positions = PositionStore(tmp_path / "positions.json")
    source = ForgetsWhenClosed(line(), line(), SourceUnavailableError("gone"))
    ingest = make(source, positions=positions)
    running = asyncio.create_task(ingest.run())
    await until(lambda: source.health.last_error == "gone" and not source.is_open)
    ingest.scraped()
    assert positions.position("journal:kimi") == {"read": 2}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    positions.close()


def test_a_withdrawn_fact_is_what_the_server_says_itself() -> None:
    ingest = make()
    ingest.configure([ServerConfig("kimi", facts={"pp_size": 8, "tp_size": 2})])
    ingest.handle(told("server_args", pp_size=4))
    assert facts_of(ingest) == {"pp_size": 8, "tp_size": 2}
    ingest.configure([ServerConfig("kimi", facts={"decode_log_interval": 41})])
    assert facts_of(ingest) == {"pp_size": 4, "tp_size": None, "decode_log_interval": 41}
    ingest.handle(line(pp=3, title="sglang::scheduler_PP3"))
    ingest.handle(line(pp=4, title="sglang::scheduler_PP4"))
    assert ingest.snapshot().refused_lines == {Refusal.RANK_OUT_OF_BOUNDS: 1}, "bounded by 4 now"
