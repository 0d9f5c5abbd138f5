"""Pictures of the live page: a demo of each scenario, looked at when there is enough to see.

    python -m bench.page_previews --output docs/images [--scenario NAME ...]

Needs systemd-journal-remote and chromium. No network.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Browser
from playwright.sync_api import TimeoutError as PatienceError

from bench.small_png import small_png
from exporter.simulator import SCENARIOS
from tests.browser import chromium
from tests.running import RunningExporter

SECONDS, SECONDS_OF_GPU_LOST = 110.0, 48.0
"""How old a demo is when it is looked at; the card is lost from the 20th second to the 40th."""
AT_ONCE = 4
WIDTH, HEIGHT = 1200, 900
JUDGED_SECONDS = 30
"""After a page is opened its first verdict is made; most of this is patience."""


def draw(browser: Browser, url: str, output: Path, *, dark: bool) -> None:
    """The page of one exporter, down to the end of its tables."""
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    page.goto(url)
    with contextlib.suppress(PatienceError):  # an idle server gets no verdict
        page.wait_for_selector("#more:not(:empty)", timeout=1000 * JUDGED_SECONDS)
    end = page.locator("#stages").bounding_box()
    assert end is not None
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": end["y"] + end["height"] + 16, "scale": 1}
    found = context.new_cdp_session(page).send(
        "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True, "clip": clip}
    )
    output.write_bytes(small_png(browser, found["data"]))
    context.close()


def age(scenario: str) -> float:
    """How old a demo is when it is looked at."""
    return SECONDS_OF_GPU_LOST if scenario == "gpu_lost" else SECONDS


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--scenario", action="append", default=[])
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    scenarios = given.scenario or list(SCENARIOS)
    with chromium() as browser:
        for first in range(0, len(scenarios), AT_ONCE):
            with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                running = {}
                for scenario in scenarios[first : first + AT_ONCE]:
                    own = Path(folder) / scenario
                    own.mkdir()
                    demo = RunningExporter(["demo", "--scenario", scenario], own)
                    running[scenario] = stack.enter_context(demo)
                began = time.monotonic()
                for scenario in sorted(running, key=age):
                    demo = running[scenario]
                    time.sleep(max(began + age(scenario) - time.monotonic(), 0.0))
                    draw(
                        browser,
                        demo.url,
                        given.output / f"page-{scenario}.png",
                        dark=given.dark,
                    )


if __name__ == "__main__":
    main()
