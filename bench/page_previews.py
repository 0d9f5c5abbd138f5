"""Pictures of the live page: a demo of each scenario, looked at after two minutes.

    python -m bench.page_previews --output docs/images [--seconds 110] [--scenario NAME ...]

Needs systemd-journal-remote and chromium. No network.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Browser

from tests.browser import chromium
from tests.running import RunningExporter

SCENARIOS = (
    "thundering_herd",
    "healthy",
    "stage_imbalance",
    "uneven_split",
    "global_stall",
    "client_limited",
    "graph_off",
    "gpu_lost",
)
AT_ONCE = 4
WIDTH, HEIGHT = 1200, 900
JUDGED_SECONDS = 4
"""After a page is opened its first verdict is made."""


def draw(browser: Browser, url: str, output: Path, *, dark: bool) -> None:
    """The page of one exporter, down to the end of its tables."""
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    page.goto(url)
    page.wait_for_timeout(1000 * JUDGED_SECONDS)
    page.screenshot(path=output, full_page=True)
    context.close()


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--scenario", action="append", default=[])
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    scenarios = given.scenario or SCENARIOS
    with chromium() as browser:
        for first in range(0, len(scenarios), AT_ONCE):
            with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
                running = {}
                for scenario in scenarios[first : first + AT_ONCE]:
                    own = Path(folder) / scenario
                    own.mkdir()
                    demo = RunningExporter(["demo", "--scenario", scenario], own)
                    running[scenario] = stack.enter_context(demo)
                time.sleep(given.seconds)
                for scenario, demo in running.items():
                    draw(
                        browser,
                        demo.url,
                        given.output / f"page-{scenario}.png",
                        dark=given.dark,
                    )


if __name__ == "__main__":
    main()
