"""Runs demos, lets a Prometheus watch them, and draws a dashboard of each into a PNG.

    python -m bench.previews --output docs/images [--minutes 6] [--scenario NAME ...]

Needs prometheus, systemd-journal-remote and chromium. No network; no Grafana.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from bench.previews.data import Window
from bench.previews.page import WIDTH, page
from tests.dashboards import dashboards
from tests.demo_pipelines import running_demos
from tests.metrics_target import MODEL
from tests.prometheus_server import Prometheus

SCENARIOS = ("healthy", "thundering_herd", "stage_imbalance")
SCRAPE_SECONDS = 5
SETTLED_SECONDS = 60
"""What is drawn begins so long after the start, when levels are learned and rates are whole."""
CHROMIUM = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def variables(scenario: str) -> dict[str, str]:
    """What a person would pick; not the stand-in for SGLang's own metrics, whose times are invented."""
    return {
        "job": scenario,
        "instance": ".+",
        "server": "sglang",
        "server_a": "sglang",
        "server_b": "sglang",
        "offset_b": "1m",
        "dp_rank": "0",
        "pp_rank": ".+",
        "gpu": ".+",
        "model": MODEL,
        "model_a": MODEL,
        "model_b": MODEL,
    }


def draw(prometheus: Prometheus, scenario: str, uid: str, window: Window, output: Path) -> None:
    """One dashboard of one scenario, as a PNG."""
    dashboard = next(one for one in dashboards() if one["uid"] == uid)
    note = f"demo --scenario {scenario} · drawn from live Prometheus data, without Grafana"
    html, height = page(dashboard, prometheus, window, variables(scenario), note)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "page.html"
        source.write_text(html)
        subprocess.run(
            [
                *CHROMIUM,
                f"--user-data-dir={folder}/profile",
                f"--window-size={WIDTH},{height}",
                f"--screenshot={output.resolve()}",
                source.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--scenario", action="append", default=[])
    parser.add_argument("--dashboard", default="sglang-pipeline-occupancy")
    given = parser.parse_args()
    scenarios = given.scenario or SCENARIOS
    given.output.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        running_demos(Path(folder), scenarios, SCRAPE_SECONDS) as prometheus,
    ):
        time.sleep(60 * given.minutes)
        now = time.time()
        window = Window(now - 60 * given.minutes + SETTLED_SECONDS, now, SCRAPE_SECONDS)
        for scenario in scenarios:
            name = given.dashboard.removeprefix("sglang-pipeline-")
            draw(
                prometheus,
                scenario,
                given.dashboard,
                window,
                given.output / f"{name}-{scenario}.png",
            )


if __name__ == "__main__":
    main()
