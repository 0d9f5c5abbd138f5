"""The live page in Chromium: what it draws is what is known, and everybody can use it."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from exporter.palette import CellState
from exporter.simulator.log_writers import find_journal_remote
from exporter.simulator.scenarios import SCENARIOS
from tests.browser import PROGRAM, chromium
from tests.live_page import Drawn, Known, Watching, differences, drawn, watching
from tests.running import RunningExporter

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed"),
    pytest.mark.skipif(
        find_journal_remote() is None, reason="systemd-journal-remote is not installed"
    ),
]

SLICE = ("thundering_herd", "stage_imbalance", "cannot_tell")
"""Scenarios of `make test`; the others are looked at by `make soak`."""
SHOWN_SECONDS = 12
"""Settled seconds before a picture is looked at."""
WAITS_SECONDS = 60.0
SIZES = {"phone": (390, 844), "desktop": (1280, 1000)}


@pytest.fixture(scope="module", name="demos")
def fixture_demos(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, RunningExporter]]:
    """Demos of the slice, side by side."""
    with ExitStack() as stack:
        yield {
            scenario: stack.enter_context(
                RunningExporter(["demo", "--scenario", scenario], tmp_path_factory.mktemp(scenario))
            )
            for scenario in SLICE
        }


@pytest.fixture(scope="module", name="browser")
def fixture_browser(demos: Mapping[str, RunningExporter]) -> Iterator[Browser]:
    """After the demos: they gather seconds while it starts."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module", name="herd")
def fixture_herd(demos: Mapping[str, RunningExporter]) -> RunningExporter:
    running = demos["thundering_herd"]
    running.wait_until(lambda: len(Known(running).seconds) >= SHOWN_SECONDS, WAITS_SECONDS)
    return running


@pytest.fixture(name="watch")
def fixture_watch(browser: Browser, herd: RunningExporter) -> Iterator[Watching]:
    """The herd's page with a picture on it."""
    with watching(browser, herd.url) as watch:
        watch.page.wait_for_selector("#overview canvas[data-from]")
        yield watch


class Look(NamedTuple):
    """Both pictures of a page that stands still, and what is known of that time."""

    overview: Drawn
    closeup: Drawn
    known: Known


def look(browser: Browser, running: RunningExporter, *, dark: bool = False) -> Look:
    """Opens the page, pauses it and reads its pictures."""
    running.wait_until(lambda: len(Known(running).seconds) >= SHOWN_SECONDS, WAITS_SECONDS)
    with watching(browser, running.url, dark=dark) as watch:
        watch.page.wait_for_selector("#overview canvas[data-from]")
        watch.page.click("#pause")
        watch.wait(lambda: "paused" in watch.text("#overview-title"))
        overview, closeup = (drawn(watch.page, each, dark=dark) for each in ("overview", "closeup"))
        return Look(overview, closeup, Known(running))


@pytest.fixture(scope="module", name="looks")
def fixture_looks(browser: Browser, demos: Mapping[str, RunningExporter]) -> Callable[[str], Look]:
    """A look at a demo of the slice, once."""
    return cache(lambda scenario: look(browser, demos[scenario]))


# --- the picture ---------------------------------------------------------------------------------


def test_every_cell_is_painted_as_the_model_knows_it(looks: Callable[[str], Look]) -> None:
    overview, closeup, known = looks("thundering_herd")
    assert len(overview.rows) == len(closeup.rows) == 8
    assert (overview.cell_seconds, closeup.cell_seconds) == (0.2, 0.02)
    assert (len(overview.rows[0]), len(closeup.rows[0])) == (300, 150)
    assert differences(overview, known) == []
    assert differences(closeup, known) == []


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", sorted(SCENARIOS.keys() - set(SLICE)))
def test_every_scenario_is_painted_as_the_model_knows_it(
    browser: Browser, tmp_path: Path, scenario: str
) -> None:
    with RunningExporter(["demo", "--scenario", scenario], tmp_path) as running:
        for dark in (False, True):
            overview, closeup, known = look(browser, running, dark=dark)
            assert differences(overview, known) == []
            assert differences(closeup, known) == []


def test_a_herd_runs_down_the_stages_as_a_diagonal_stripe(looks: Callable[[str], Look]) -> None:
    closeup = looks("thundering_herd").closeup
    rows = [closeup.series(row, CellState.WORKING) for row in range(8)]
    for above, below in pairwise(rows):
        likeness = {
            lag: sum(a * b for a, b in zip(above, below[lag:], strict=False)) for lag in range(13)
        }
        # 65 ms from stage to stage: the next one works three cells later.
        assert max(likeness, key=lambda lag: likeness[lag]) in (2, 3, 4), likeness
    assert all(0.05 < closeup.mean(row, CellState.WORKING) < 0.2 for row in range(8))


def test_time_before_the_first_second_is_unknown_and_not_idle(looks: Callable[[str], Look]) -> None:
    # Looked at first: the demo is younger than the picture is long.
    overview, _, known = looks(SLICE[0])
    before = round((min(known.seconds) - overview.began_at) / overview.cell_seconds)
    assert before > 0
    for row in overview.rows:
        assert all(set(cell) == {CellState.UNKNOWN} for cell in row[:before])


def test_the_dark_picture_has_the_dark_colors(browser: Browser, herd: RunningExporter) -> None:
    overview, closeup, known = look(browser, herd, dark=True)
    assert differences(overview, known) == []
    assert differences(closeup, known) == []


# --- live, pause, look back ----------------------------------------------------------------------


def test_new_seconds_come_by_themselves(watch: Watching) -> None:
    before = watch.end()
    watch.wait(lambda: watch.end() >= before + 3)
    assert watch.text("#connection") == "live"


def test_a_paused_picture_stands_still_and_follows_again(watch: Watching) -> None:
    watch.page.click("#pause")
    watch.wait(lambda: "paused" in watch.text("#overview-title"))
    stood = watch.end()
    table = watch.text("#stages")
    watch.wait(lambda: watch.text("#stages") != table)  # what comes meanwhile is taken
    assert watch.end() == stood
    watch.page.click("#pause")
    watch.wait(lambda: watch.end() > stood)


def test_the_past_can_be_looked_at(watch: Watching) -> None:
    newest = watch.end()
    watch.page.click("#back")
    watch.wait(lambda: watch.end() <= newest - 25)
    watch.page.locator("#past").fill("300")
    watch.wait(lambda: watch.end() <= newest - 270)
    assert drawn(watch.page, "overview").mean(0, CellState.UNKNOWN) == 1.0  # before the demo began
    watch.page.locator("#overview").press("End")
    watch.wait(lambda: watch.end() > newest)


def test_a_pointer_shows_stage_time_share_watts_and_batch(
    watch: Watching, herd: RunningExporter
) -> None:
    watch.page.click("#pause")
    watch.wait(lambda: "paused" in watch.text("#overview-title"))
    found = drawn(watch.page, "closeup")
    working = found.series(5, CellState.WORKING)
    cell = working.index(max(working))
    box = watch.page.locator("#closeup canvas").bounding_box()
    assert box is not None
    x = box["x"] + (cell + 0.5) / len(working) * box["width"]
    watch.page.mouse.move(x, box["y"] + 5.5 * 31)
    watch.wait(lambda: watch.text("#readout").startswith("Stage 5, "))
    told = watch.text("#readout").replace("\u00a0", " ")
    shares = Known(herd).shares(5, found.began_at + cell * 0.02, 0.02)
    assert f"20 ms: works {round(100 * shares.working)} %" in told
    assert told.endswith("batch of 32")
    assert " W, " in told
    watch.page.mouse.move(0, 0)
    watch.wait(lambda: watch.text("#readout").startswith("Point at"))


def test_keys_move_a_cursor_through_stages_and_time(watch: Watching) -> None:
    picture = watch.page.locator("#overview")
    picture.focus()
    picture.press("ArrowLeft")
    watch.wait(lambda: watch.text("#readout").startswith("Stage 0, "))
    assert "paused" in watch.text("#overview-title")
    picture.press("ArrowDown")
    picture.press("ArrowDown")
    watch.wait(lambda: watch.text("#readout").startswith("Stage 2, "))
    before = watch.text("#readout").split(", ")[1]
    picture.press("ArrowLeft")
    watch.wait(lambda: watch.text("#readout").split(", ")[1] < before)
    picture.press("Shift+ArrowRight")
    watch.wait(lambda: ", 20 ms:" in watch.text("#readout"))
    picture.press("Escape")
    watch.wait(lambda: watch.text("#readout").startswith("Point at"))
    picture.press(" ")
    watch.wait(lambda: "paused" not in watch.text("#overview-title"))


# --- beside the picture --------------------------------------------------------------------------


def test_the_last_minute_is_saved_as_a_recording(watch: Watching) -> None:
    with watch.page.expect_download() as download:
        watch.page.click("#save")
    path = download.value.path()
    header = json.loads(gzip.decompress(path.read_bytes()).split(b"\n")[0])
    assert header["format"] == "sglang-pipeline-recording"
    assert download.value.suggested_filename.endswith(".jsonl.gz")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(
    browser: Browser, herd: RunningExporter, size: str, dark: bool
) -> None:
    width, height = SIZES[size]
    with watching(browser, herd.url, dark=dark, width=width, height=height) as watch:
        watch.page.wait_for_selector("#overview canvas[data-from]")
        watch.wait(lambda: watch.page.locator("#slots tbody tr").count() == 8)
        found = Axe().run(watch.page)
        assert found.violations_count == 0, found.generate_report()
        assert watch.page.evaluate("document.documentElement.scrollWidth") <= width


# --- when there is little to show ----------------------------------------------------------------


def test_a_page_without_data_says_what_it_waits_for_and_how_long(
    browser: Browser, tmp_path: Path
) -> None:
    log = tmp_path / "sglang.log"
    log.touch()
    with (
        RunningExporter(["serve", "--file", str(log), "--no-nvml"], tmp_path) as running,
        watching(browser, running.url) as watch,
    ):
        watch.wait(lambda: "first line of an SGLang scheduler" in watch.text("#waits"))
        waited = watch.text("#waited")
        watch.wait(lambda: watch.text("#waited") != waited)
        assert Axe().run(watch.page).violations_count == 0


LINE = (
    "[2026-11-30 10:00:00 PP{rank}] Decode batch, #running-req: {running}, #token: 1000, "
    "token usage: 0.31, cuda graph: True, gen throughput (token/s): 870.12, #queue-req: 3\n"
)


def test_several_servers_are_switched_between_and_names_are_text(
    browser: Browser, tmp_path: Path
) -> None:
    logs = {name: tmp_path / f"{name}.log" for name in ("first", "second")}
    names = {"first": "first", "second": "<img src=x onerror=alert(1)>"}
    config = tmp_path / "exporter.yaml"
    servers = [{"name": names[name], "files": [str(path)]} for name, path in logs.items()]
    config.write_text(json.dumps({"nvml": False, "servers": servers}))
    for path in logs.values():
        path.touch()
    with RunningExporter(["serve", "--config", str(config)], tmp_path) as running:
        running.wait_until(lambda: running.get("/-/ready").status == 200)
        for index, path in enumerate(logs.values()):
            with path.open("a") as log:
                log.writelines(LINE.format(rank=rank, running=4 + index) for rank in range(2))
        with watching(browser, running.url) as watch:
            watch.page.wait_for_selector("#switch:not([hidden])")
            options = watch.page.locator("#pipeline option").all_inner_texts()
            assert options == [names["first"], names["second"]]
            assert watch.page.locator("#stages tbody td").nth(0).inner_text() == "4"
            watch.page.select_option("#pipeline", index=1)
            watch.wait(lambda: watch.page.locator("#stages tbody td").nth(0).inner_text() == "5")
            assert "server=%3Cimg" in watch.page.url
            watch.page.reload()
            watch.page.wait_for_selector("#switch:not([hidden])")
            assert watch.page.locator("#stages tbody td").nth(0).inner_text() == "5"
            assert watch.page.locator("img").count() == 0
            assert "No GPU was seen yet" in watch.text("#told")


def test_a_lost_connection_is_said_and_found_again(browser: Browser, tmp_path: Path) -> None:
    log = tmp_path / "sglang.log"
    log.touch()
    with (
        RunningExporter(["serve", "--file", str(log), "--no-nvml"], tmp_path) as running,
        watching(browser, running.url) as watch,
    ):
        watch.wait(lambda: watch.text("#connection") == "live")
        os.kill(running.pid, signal.SIGSTOP)
        try:
            watch.wait(lambda: "connection lost" in watch.text("#connection"))
        finally:
            os.kill(running.pid, signal.SIGCONT)
        watch.wait(lambda: watch.text("#connection") == "live")


# --- what takes half a minute to be known ----------------------------------------------------------


def test_a_slow_stage_is_one_full_row_among_others_that_wait(looks: Callable[[str], Look]) -> None:
    overview, closeup, known = looks("stage_imbalance")
    assert differences(overview, known) == []
    assert differences(closeup, known) == []
    assert closeup.mean(7, CellState.WORKING) > 0.9
    for row in range(7):
        assert closeup.mean(row, CellState.WORKING) < 0.8
        assert closeup.mean(row, CellState.WAITING) > 0.2


def test_residency_alone_is_never_drawn_as_work(looks: Callable[[str], Look]) -> None:
    overview, closeup, known = looks(SLICE[-1])
    assert differences(overview, known) == []
    assert differences(closeup, known) == []
    for picture in (overview, closeup):
        assert all(picture.mean(row, CellState.WORKING) == 0.0 for row in range(8))
        assert all(picture.mean(row, CellState.RESIDENT) > 0.1 for row in range(8))


def test_seconds_from_before_the_page_was_opened_are_fetched(
    browser: Browser, herd: RunningExporter
) -> None:
    herd.wait_until(lambda: len(Known(herd).seconds) >= 63, WAITS_SECONDS)
    with watching(browser, herd.url) as watch:
        watch.page.wait_for_selector("#overview canvas[data-from]")
        watch.page.click("#back")
        watch.wait(lambda: "paused" in watch.text("#overview-title"))
        watch.wait(lambda: differences(drawn(watch.page, "overview"), Known(herd)) == [])


def test_sentence_figures_and_tables_are_those_of_the_api(
    watch: Watching, herd: RunningExporter
) -> None:
    watch.wait(lambda: watch.text("#verdict-title").lower() == "thundering herd", WAITS_SECONDS)
    assert "of 8 micro-batches" in watch.text("#sentence")
    assert "Try next: " in watch.text("#advice")
    rows = watch.page.locator("#stages tbody tr")
    assert rows.count() == 8
    assert rows.nth(3).locator("th").inner_text() == "3"
    cells = rows.nth(3).locator("td").all_inner_texts()
    assert cells[0].endswith("32")  # after "32 prefill + " while that is young
    assert cells[1] == "32"
    assert cells[-1] == "3"
    assert watch.page.locator("#slots tbody tr").count() == 8
    assert "1.0 of 8" in watch.text("#figures")
    assert "journal:sglang" in watch.text("#sources")
    assert "SGLANG_LOG_FORWARD_ITERS=1" in watch.text("#switch-on")
    watch.wait(lambda: "herd" in watch.page.locator("#aloud").text_content())  # type: ignore[operator]  # there is one
