"""The whole process over a driver that hangs, breaks or was updated under it."""

from pathlib import Path

from tests.fake_nvml import FakeNvml
from tests.running import PATIENCE_SECONDS, RunningExporter

HANG_SECONDS = 10.0
GPUS = 8
SCRAPES = 50


def test_a_call_that_hangs_ten_seconds_delays_no_scrape_and_loses_no_residency(
    tmp_path: Path,
) -> None:
    """The utilization ring holds 14 s: what the hang hid is drained behind it."""
    fake = FakeNvml(tmp_path / "nvml", GPUS)
    for gpu in range(GPUS):
        fake.control.gpu[gpu].duty = 0.1 * (gpu + 1)
    with RunningExporter(["serve", "--stdin"], tmp_path, fake.environment()) as running:
        running.wait_for(lambda seen: len(seen.matching("gpu_resident_seconds_total")) == GPUS)
        asked = fake.calls("nvmlDeviceGetSamples", 3)
        fake.hang("nvmlDeviceGetSamples", HANG_SECONDS, gpu=3)
        running.wait_until(lambda: fake.calls("nvmlDeviceGetSamples", 3) > asked)
        fake.hang("nvmlDeviceGetSamples", 0.0, gpu=3)
        asked = fake.calls("nvmlDeviceGetSamples", 3)
        for _ in range(SCRAPES):
            running.metrics()
        assert fake.calls("nvmlDeviceGetSamples", 3) == asked, "scrapes were answered meanwhile"
        running.wait_for(lambda seen: seen.value("exporter_source_up", source="nvml") == 0)
        after = running.wait_for(
            lambda seen: (
                seen.value("exporter_source_up", source="nvml") == 1
                and seen.total("gpu_observed_seconds_total", signal="utilization")
                > GPUS * HANG_SECONDS
            )
        )
        for gpu in range(GPUS):
            assert after.value("gpu_missed_seconds_total", gpu=str(gpu), signal="utilization") == 0
            resident = after.value("gpu_resident_seconds_total", gpu=str(gpu))
            observed = after.value("gpu_observed_seconds_total", gpu=str(gpu), signal="utilization")
            assert resident is not None
            assert observed is not None
            assert abs(resident / observed - 0.1 * (gpu + 1)) < 0.05


def test_a_driver_updated_under_the_process_ends_it_with_a_remedy(tmp_path: Path) -> None:
    fake = FakeNvml(tmp_path / "nvml", GPUS)
    with RunningExporter(["serve", "--stdin"], tmp_path, fake.environment()) as running:
        running.wait_for(lambda seen: len(seen.matching("gpu_up")) == GPUS)
        for function in ("nvmlDeviceGetSamples", "nvmlDeviceGetMemoryInfo_v2"):
            fake.fault(function, "LIB_RM_VERSION_MISMATCH")
        assert running.process.wait(timeout=PATIENCE_SECONDS) != 0
        assert "restart" in running.said
        assert "Traceback" not in running.said


def test_without_a_driver_the_log_alone_is_served(tmp_path: Path) -> None:
    empty = tmp_path / "no-libraries"
    empty.mkdir()
    environment = {"LD_LIBRARY_PATH": str(empty)}
    line = (
        "[2026-11-30 08:50:26 PP1] Decode batch, #running-req: 4, #token: 53, token usage: 0.10, "
        "cuda graph: True, gen throughput (token/s): 8.16, #queue-req: 0"
    )
    with RunningExporter(["serve", "--stdin"], tmp_path, environment) as running:
        running.feed(line)
        seen = running.wait_for(
            lambda metrics: metrics.value("stage_running_requests", pp_rank="1") == 4
        )
        assert seen.value("exporter_source_up", source="nvml") == 0
        assert not seen.matching("gpu_up")
        assert running.get("/-/ready").status == 200
        running.wait_until(lambda: "NVIDIA" in running.said or "driver" in running.said)
