"""The live page in a real browser, and what its canvas shows, read pixel by pixel.

Nothing of the page's own code is used: colors come from the palette, shares from /api/v1/timeline.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from playwright.sync_api import Browser, Page, Request

from exporter.palette import LOOKS, CellState
from exporter.pipeline.stage_cells import Shares, StageCells
from tests.running import PATIENCE_SECONDS, RunningExporter

CELLS = 50

READ_COLUMNS = """canvas => {
  const data = canvas.dataset, {width, height} = canvas;
  const copy = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
  copy.drawImage(canvas, 0, 0);
  const whole = copy.getImageData(0, 0, width, height).data;
  const count = Math.round(data.seconds / data.cell), rows = [];
  for (let row = 0; row < data.rows; row += 1) {
    const top = Number(data.top) + row * Number(data.pitch), columns = [];
    for (let cell = 0; cell < count; cell += 1) {
      const x = Math.floor((cell + 0.5) / count * width), column = {};
      for (let y = top; y < top + Number(data.rowHeight); y += 1) {
        const at = 4 * (y * width + x), color = "#" + [...whole.slice(at, at + 3)]
          .map(part => part.toString(16).padStart(2, "0")).join("");
        column[color] = (column[color] ?? 0) + 1;
      }
      columns.push(column);
    }
    rows.push(columns);
  }
  return {from: Number(data.from), cell: Number(data.cell), height: Number(data.rowHeight), rows};
}"""


class Drawn(NamedTuple):
    """What a picture shows: pixels of each state by row and cell; the rest of `height` is mixed."""

    began_at: float
    cell_seconds: float
    height: int
    rows: list[list[Mapping[CellState, int]]]

    def series(self, row: int, state: CellState) -> list[float]:
        """The share of a state in each cell of a row."""
        return [cell.get(state, 0) / self.height for cell in self.rows[row]]

    def mean(self, row: int, state: CellState) -> float:
        """Over the whole row."""
        series = self.series(row, state)
        return sum(series) / len(series)


def drawn(page: Page, picture: str, *, dark: bool = False) -> Drawn:
    """Reads the canvas of `overview` or `closeup`."""
    found = page.locator(f"#{picture} canvas").evaluate(READ_COLUMNS)
    states = {}
    for state, look in LOOKS.items():
        surface, lines = (look.dark, look.dark_lines) if dark else (look.light, look.light_lines)
        states[surface] = states[lines or surface] = state
    rows = []
    for columns in found["rows"]:
        row = []
        for column in columns:
            counts: dict[CellState, int] = {}
            for color, pixels in column.items():
                if color in states:
                    counts[states[color]] = counts.get(states[color], 0) + pixels
            row.append(counts)
        rows.append(row)
    return Drawn(found["from"], found["cell"], found["height"], rows)


class Known:
    """Settled seconds of the first pipeline as /api/v1/timeline tells them."""

    def __init__(self, running: RunningExporter, seconds: int = 120) -> None:
        answer = json.loads(running.get(f"/api/v1/timeline?seconds={seconds}&cells=20").text)
        pipelines = answer["pipelines"]
        self.seconds: dict[int, list[Any]] = {}
        for each in pipelines[0]["seconds"] if pipelines else ():
            # One in which the map of stages changed comes in parts.
            self.seconds.setdefault(each["second"], []).append(each)

    def shares(self, rank: int, at: float, seconds: float) -> Shares:
        """How a stage spent a stretch of whole cells; of what is not known nothing was seen."""
        first = round(at * CELLS)
        stop = first + round(seconds * CELLS)
        sums = [0.0] * 4
        for cell in range(first, stop):
            for part in self.seconds.get(cell // CELLS, ()):
                if (text := part["cells"].get(str(rank))) is None:
                    continue
                packed = base64.b64decode(text)
                planes = StageCells(*(packed[at : at + CELLS] for at in range(0, 4 * CELLS, CELLS)))
                for index, share in enumerate(planes.shares(cell % CELLS, cell % CELLS + 1)):
                    sums[index] += share / (stop - first)
        return Shares(*sums)


def differences(found: Drawn, known: Known) -> list[str]:
    """Cells whose pixels are not what the data says; two pixels of a row may be mixed."""
    wrong = []
    for rank, row in enumerate(found.rows):
        for cell, counts in enumerate(row):
            at = found.began_at + cell * found.cell_seconds
            shares = known.shares(rank, at, found.cell_seconds)
            for state, share in (
                (CellState.WORKING, shares.working),
                (CellState.WAITING, shares.waiting),
                (CellState.RESIDENT, shares.resident),
                (CellState.IDLE, shares.idle),
                (CellState.UNKNOWN, shares.unknown),
            ):
                if abs(counts.get(state, 0) - share * found.height) > 2.0:
                    wrong.append(f"stage {rank} {at:.2f} {state}: {counts} for {shares}")
    return wrong


class Watching:
    """A page under test, and what went on beneath it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.elsewhere: list[str] = []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

        def look(request: Request) -> None:
            if not request.url.startswith((url + "/", "data:", "blob:")):
                self.elsewhere.append(request.url)

        page.on("request", look)

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def wait(self, condition: Callable[[], object], within: float = PATIENCE_SECONDS) -> None:
        """Looks until the condition holds.

        Raises:
            AssertionError: It did not in time.
        """
        for _ in range(int(within / 0.1)):
            if condition():
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(f"waited {within:g} s in vain: {self.complaints}")

    def text(self, selector: str) -> str:
        """The visible text of an element."""
        return self.page.inner_text(selector)

    def end(self) -> float:
        """Where the overview ends, epoch seconds."""
        data = self.page.locator("#overview canvas").evaluate("canvas => ({...canvas.dataset})")
        return float(data["from"]) + float(data["seconds"])


@contextmanager
def watching(
    browser: Browser, url: str, *, dark: bool = False, width: int = 1280, height: int = 1400
) -> Iterator[Watching]:
    """The page of an exporter; at the end nothing was complained of and nobody else was asked."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        accept_downloads=True,
        reduced_motion="reduce",
    )
    try:
        watch = Watching(context.new_page(), url)
        watch.page.goto(url + "/")
        yield watch
        assert watch.complaints == [], watch.complaints
        assert watch.elsewhere == [], watch.elsewhere
    finally:
        context.close()
