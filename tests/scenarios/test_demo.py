"""`demo` as a newcomer starts it: a process, with its journal, its scrapes and its end."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.simulator.log_text import API_KEY
from exporter.simulator.log_writers import find_journal_remote
from exporter.simulator.noise import PROMPT
from exporter.simulator.scenarios import STAGES
from tests.running import PROMETHEUS_ACCEPTS, Metrics, RunningExporter, promtool_complaints

RANKS = {str(rank) for rank in range(STAGES)}
SHOWN_WITHIN_SECONDS = 10.0
ENDS_WITHIN_SECONDS = 2.0
STAY_WHEN_LOST = ("up", "last_sample_timestamp_seconds")
"""The second says since when nothing was known."""

pytestmark = pytest.mark.skipif(
    find_journal_remote() is None, reason="systemd-journal-remote is not installed"
)


def shows_all_stages(metrics: Metrics) -> bool:
    return all(
        metrics.label_values(name, "pp_rank") == RANKS
        for name in ("stage_running_requests", "stage_batch_size", "stage_gpu_utilization_ratio")
    )


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningExporter]:
    """Loses GPU 3 twenty seconds after its start, while other tests go on."""
    folder = tmp_path_factory.mktemp("gpu_lost")
    with RunningExporter(["demo", "--scenario", "gpu_lost"], folder) as running:
        yield running


@pytest.fixture(scope="module")
def demo(
    losing: RunningExporter, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningExporter]:
    with RunningExporter(["demo"], tmp_path_factory.mktemp("demo")) as running:
        yield running


def journal_of(demo: RunningExporter) -> Path:
    (folder,) = demo.temporary_files()
    return folder / "journal"


def journal_text(demo: RunningExporter) -> str:
    """Every message of the demo's journal, read by systemd's own program."""
    journal = f"--directory={journal_of(demo)}"
    command = ["journalctl", journal, "--output=cat", "--all", "--quiet"]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode()


def test_all_eight_stages_show_within_ten_seconds(demo: RunningExporter) -> None:
    metrics = demo.wait_for(shows_all_stages, within=SHOWN_WITHIN_SECONDS)
    assert all(value >= 1 for value in metrics.matching("stage_running_requests").values())
    assert metrics.label_values("stage_batch_size", "mode") >= {"decode"}
    assert demo.get("/-/ready").status == 200


def test_promtool_is_content(demo: RunningExporter) -> None:
    demo.wait_for(shows_all_stages)
    assert promtool_complaints(demo.get("/metrics").text) == ""


def test_forged_lines_of_the_journal_change_no_series(demo: RunningExporter) -> None:
    metrics = demo.wait_for(lambda metrics: metrics.total("exporter_rejected_lines_total") > 0)
    assert metrics.label_values("stage_running_requests", "pp_rank") <= RANKS
    assert all(value < 100 for value in metrics.matching("stage_running_requests").values())


@pytest.mark.skipif(shutil.which("journalctl") is None, reason="journalctl is not installed")
def test_neither_key_nor_prompt_of_the_journal_comes_out_anywhere(
    demo: RunningExporter, tmp_path: Path
) -> None:
    demo.wait_until(lambda: all(secret in journal_text(demo) for secret in (API_KEY, PROMPT)))
    outputs = outputs_of(demo) | {"recording": recording_of(journal_of(demo), tmp_path)}
    # The demo keeps no position; `serve` on the same journal does.
    with RunningExporter(["serve", *sources(journal_of(demo))], tmp_path) as serving:
        serving.wait_for(lambda metrics: metrics.total("exporter_rejected_lines_total") > 0)
        outputs |= {f"serve {name}": text for name, text in outputs_of(serving).items()}
        state = tmp_path / "state" / "positions.json"
        outputs["state"] = state.read_text()

    assert "Decode batch" in outputs["recording"]
    assert "journal:sglang" in outputs["state"]
    assert [name for name, text in outputs.items() if API_KEY in text or PROMPT in text] == []


def outputs_of(running: RunningExporter) -> dict[str, str]:
    api = ("/api/v1/pipeline", "/api/v1/timeline?seconds=60&cells=20")
    pages = ("/metrics", "/", "/-/ready", "/-/healthy", "/missing", *api)
    return {page: running.get(page).text for page in pages} | {
        "openmetrics": running.get("/metrics", PROMETHEUS_ACCEPTS).text,
        "stderr": running.said,
    }


def sources(journal: Path) -> list[str]:
    return ["--unit=sglang.service", f"--journal-dir={journal}", "--from-start", "--no-nvml"]


def recording_of(journal: Path, folder: Path) -> str:
    """What `record` writes of a journal, and all it says meanwhile."""
    output = folder / "made.jsonl.gz"
    command = [sys.executable, "-m", "exporter", "record", "--duration=2", f"--output={output}"]
    done = subprocess.run([*command, *sources(journal)], capture_output=True, text=True, check=True)
    return gzip.decompress(output.read_bytes()).decode() + done.stdout + done.stderr


def test_sigterm_ends_it_with_nothing_left_behind(tmp_path: Path) -> None:
    with RunningExporter(["demo"], tmp_path) as running:
        running.wait_for(lambda metrics: metrics.total("stage_batches_total") > 0)
        assert any("systemd-journal-remote" in command for command in running.relatives())
        assert len(running.temporary_files()) == 1

        assert running.terminate(within=ENDS_WITHIN_SECONDS) == 0

        assert running.relatives() == []
        assert running.temporary_files() == []


def test_a_lost_gpu_goes_absent_and_the_other_seven_go_on(losing: RunningExporter) -> None:
    before = losing.wait_for(lambda metrics: metrics.value("gpu_up", gpu="3") == 0, within=40)
    others = RANKS - {"3"}
    after = losing.wait_for(
        lambda metrics: all(
            observed_seconds(metrics, gpu) > observed_seconds(before, gpu) + 1 for gpu in others
        )
    )

    assert after.value("gpu_up", gpu="3") == 0
    assert gauges_of(after, "3") <= {f"sglang_pipeline_gpu_{name}" for name in STAY_WHEN_LOST}
    assert "sglang_pipeline_gpu_power_watts" in gauges_of(after, "2")
    assert observed_seconds(after, "3") == observed_seconds(before, "3")
    assert after.value("stage_gpu_utilization_ratio", pp_rank="3") is None
    assert after.label_values("stage_gpu_utilization_ratio", "pp_rank") == others
    assert all(after.value("gpu_up", gpu=gpu) == 1 for gpu in others)


def observed_seconds(metrics: Metrics, gpu: str) -> float:
    return metrics.total("gpu_observed_seconds_total", gpu=gpu, signal="utilization")


def gauges_of(metrics: Metrics, gpu: str) -> set[str]:
    """Names of what a GPU shows at this instant: neither counters nor its identity."""
    return {
        name
        for name, labels in metrics
        if name.startswith("sglang_pipeline_gpu_") and ("gpu", gpu) in labels
        if not name.endswith(("_total", "_info"))
    }
