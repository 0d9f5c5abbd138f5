"""What a picture of stages over time shows, and above all what it does not know."""

import gzip
import json
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from exporter.diagnose.outcome import Outcome, diagnose_recording
from exporter.diagnosis.figures import Figures
from exporter.diagnosis.picture import MOST_COLUMNS, Picture, Pictures, pictures
from exporter.diagnosis.watch import Watch
from exporter.pipeline.bubbles import combine_ranks
from exporter.pipeline.clock import Second, StageSummary
from exporter.pipeline.grid import ActivityGrid
from exporter.pipeline.stage_cells import Shares, StageCells
from exporter.records import (
    ActivityWindow,
    Batch,
    LoadEvent,
    LoadPhase,
    Method,
    Mode,
    StageGpu,
    StageMap,
)

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
KEY = ("kimi", 0)


@cache
def shared(name: str) -> Outcome:
    return diagnose_recording(RECORDINGS / f"{name}.jsonl.gz")


def pictures_of(outcome: Outcome) -> Pictures:
    return pictures(outcome.watch, outcome.pipeline, outcome.diagnosis.figures)


def without(folder: Path, name: str, drop: Callable[[dict[str, Any]], bool]) -> Outcome:
    """The outcome of a shared recording without some of its lines."""
    whole = folder / "cut.jsonl"
    with gzip.open(RECORDINGS / f"{name}.jsonl.gz", "rt") as lines, whole.open("w") as file:
        file.writelines(line for line in lines if not drop(json.loads(line)))
    return diagnose_recording(whole)


def overview(shown: Pictures) -> Picture:
    assert shown.overview is not None
    return shown.overview


def stage_second(*windows: ActivityWindow) -> StageSummary:
    grid = ActivityGrid()
    for window in windows:
        grid.add(window)
    stage = combine_ranks(list(grid.take(100).values()), 0, 50)
    assert stage is not None
    return StageSummary.of(stage)


def watched(*seconds: Second, until: float) -> Watch:
    watch = Watch()
    watch.fold(StageMap("kimi", 0.0, (StageGpu(0, 0, 0, 0),), "configuration"))
    watch.fold(LoadEvent(100.0, LoadPhase.START, 32))
    watch.fold(LoadEvent(until, LoadPhase.END, 32))
    watch.add_seconds(KEY, seconds)
    return watch


def one_stage(summary: StageSummary, second: int = 100) -> Second:
    return Second(second, {0: summary}, None, 0.02)


# --- cells -------------------------------------------------------------------------------------


def test_cells_hold_work_waiting_and_idling_where_they_were() -> None:
    cells = stage_second(
        ActivityWindow(0, 100.0, 100.2, 1.0, 0.0, Method.POWER),
        ActivityWindow(0, 100.2, 100.4, 0.25, 0.5, Method.POWER),
    ).cells
    assert cells is not None
    assert cells.shares(0, 10) == pytest.approx(Shares(working=1.0))
    assert cells.shares(10, 20) == pytest.approx(Shares(0.25, 0.5, 0.0, 0.25), abs=0.01)
    assert cells.shares(0, 20) == pytest.approx(Shares(0.625, 0.25, 0.0, 0.125), abs=0.01)


def test_time_that_no_sample_covers_is_unknown_and_not_idle() -> None:
    cells = stage_second(ActivityWindow(0, 100.0, 100.1, 0.0, 0.0, Method.POWER)).cells
    assert cells is not None
    assert cells.shares(5, 50) == Shares()
    assert cells.shares(5, 50).unknown == 1.0
    assert cells.shares(0, 10).idle == pytest.approx(0.5)
    assert cells.shares(0, 10).unknown == pytest.approx(0.5)


def test_residency_is_a_look_of_its_own() -> None:
    cells = stage_second(ActivityWindow(0, 100.0, 101.0, 0.7, None, Method.RESIDENCY)).cells
    assert cells is not None
    assert cells.shares(0, 50) == pytest.approx(Shares(resident=0.7, idle=0.3), abs=0.01)


def test_a_stage_of_two_ranks_is_unknown_where_one_of_them_is() -> None:
    summary = stage_second(
        ActivityWindow(0, 100.0, 101.0, 1.0, 0.0, Method.POWER),
        ActivityWindow(1, 100.0, 100.5, 0.5, 0.5, Method.POWER),
    )
    assert summary.cells is not None
    assert summary.cells.shares(0, 25) == pytest.approx(Shares(working=1.0))
    assert summary.cells.shares(25, 50).unknown == 1.0


def test_cells_and_the_second_they_are_of_say_the_same() -> None:
    for seconds in shared("thundering_herd").watch.seconds.values():
        for second in seconds:
            for stage in second.stages.values():
                assert isinstance(stage.cells, StageCells)
                shares = stage.cells.shares(0, 50)
                assert 1.0 - shares.unknown == pytest.approx(stage.observed, abs=0.01)
                assert shares.working + shares.resident == pytest.approx(stage.working, abs=0.01)


# --- pictures ----------------------------------------------------------------------------------


def test_a_herd_travels_from_stage_to_stage_in_the_zoom() -> None:
    zoom = pictures_of(shared("thundering_herd")).zoom
    assert zoom is not None
    assert zoom.cell_seconds == pytest.approx(0.02)
    works = [[cell.working for cell in row.cells] for row in zoom.rows]
    step = 0.268 / 8 / zoom.cell_seconds  # the herd takes 268 ms through 8 stages
    for above, below in pairwise(works):
        shifts = range(-3, 4)
        alike = {
            shift: sum(
                above[at] * below[at + shift]
                for at in range(len(above))
                if 0 <= at + shift < len(below)
            )
            for shift in shifts
        }
        assert max(alike, key=lambda shift: alike[shift]) == pytest.approx(step, abs=0.7)


def test_a_slow_stage_is_one_full_row_among_half_empty_ones() -> None:
    rows = overview(pictures_of(shared("stage_imbalance"))).rows
    means = [row.mean().working for row in rows]
    assert min(means[7:]) > 0.95
    assert max(means[:7]) < 0.7
    assert all(row.mean().waiting > 0.25 for row in rows[:7])


def test_by_residency_nothing_is_called_work(tmp_path: Path) -> None:
    dropped = ("gpm", "power", "levels")
    shown = pictures_of(without(tmp_path, "thundering_herd", lambda line: line["type"] in dropped))
    for row in overview(shown).rows:
        mean = row.mean()
        assert (mean.working, mean.waiting) == (0.0, 0.0)
        assert 0.2 < mean.resident < 0.3
    assert any("at most" in text for text in shown.missing)
    assert shown.zoom is not None
    assert shown.zoom.cell_seconds == pytest.approx(0.2)


def test_from_the_log_alone_every_cell_is_unknown_and_lines_are_marked(tmp_path: Path) -> None:
    kinds = ("header", "server", "log", "load")
    shown = pictures_of(
        without(tmp_path, "thundering_herd", lambda line: line["type"] not in kinds)
    )
    picture = overview(shown)
    assert [row.pp_rank for row in picture.rows] == list(range(8))
    for row in picture.rows:
        assert row.mean().unknown == 1.0
        assert {requests for _, requests in row.lines} == {32}
    assert shown.zoom is None
    assert "No GPU was seen" in shown.missing[0]


def test_a_gap_of_one_gpu_is_unknown_in_its_row_alone(tmp_path: Path) -> None:
    def lost(line: dict[str, Any]) -> bool:
        return line.get("gpu") == 3 and 1796032820 < line.get("end", 0) < 1796032829

    shown = pictures_of(without(tmp_path, "thundering_herd", lost))
    picture = overview(shown)
    first = round((1796032821 - picture.started_at) / picture.cell_seconds)
    for row in picture.rows:
        inside = row.cells[first : first + 35]
        assert {cell.unknown > 0.99 for cell in inside} == {row.pp_rank == 3}
    assert any("stage 3 2" in text for text in shown.missing)


def test_a_lone_rank_waits_for_nobody() -> None:
    second = one_stage(stage_second(ActivityWindow(0, 100.0, 101.0, 0.5, None, Method.RESIDENCY)))
    figures = Figures(server="kimi", pp_size=1, facts={"tp_size": 1})
    row = overview(pictures(watched(second, until=101.0), KEY, figures)).rows[0]
    assert row.mean() == pytest.approx(Shares(working=0.5, idle=0.5), abs=0.01)


def test_a_second_known_as_a_whole_is_drawn_as_a_whole() -> None:
    whole = StageSummary(0.8, 0.4, 0.2, Method.GPM, (0.4,))
    shown = pictures(watched(one_stage(whole), until=101.0), KEY, Figures(pp_size=2))
    first, second = overview(shown).rows
    assert first.mean() == pytest.approx(Shares(0.4, 0.2, 0.0, 0.2))
    assert second.is_unknown


def test_an_hour_has_no_more_columns_than_a_page_shows() -> None:
    seconds = [
        one_stage(StageSummary(1.0, 0.5, 0.0, Method.POWER, (0.5,)), 100 + n) for n in range(3600)
    ]
    picture = overview(pictures(watched(*seconds, until=3700.0), KEY, Figures(pp_size=1)))
    assert picture.columns <= MOST_COLUMNS
    assert picture.ended_at - picture.started_at >= 3600
    assert sum(cell.unknown > 0.5 for cell in picture.rows[0].cells) <= 1


def test_a_server_that_claims_a_million_stages_gets_a_page_of_bounded_size() -> None:
    watch = watched(until=110.0)
    for pp_rank in range(300):
        watch.fold(Batch("kimi", 101.0, Mode.DECODE, 0, pp_rank, 0, None, 4))
    assert len(overview(pictures(watch, KEY, Figures(pp_size=1_000_000))).rows) <= 128


def test_without_anything_dated_there_is_no_picture_but_a_reason() -> None:
    shown = pictures(Watch(), KEY, Figures())
    assert shown.overview is None
    assert shown.missing == ("Nothing dated was seen: there is no time to show.",)
