"""`diagnose --exporter`: through a running exporter, alone and beside a load of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exporter.cli import EXIT_ERROR, main
from exporter.diagnose.outcome import diagnose_recording
from exporter.diagnosis.findings import CONFIDENT
from tests.running import Metrics, RunningExporter
from tests.scenarios.test_diagnose_live import CONTRACT, Ended, end_of, start_with
from tests.streaming_server import StreamingServer

SECONDS = 10


def shows_all_stages(metrics: Metrics) -> bool:
    return len(metrics.label_values("stage_running_requests", "pp_rank")) == 8


async def diagnose(*arguments: str) -> Ended:
    return await end_of(await start_with("--json", *arguments))


async def test_a_served_demo_is_diagnosed_through_its_exporter(tmp_path: Path) -> None:
    watched, driven = tmp_path / "watched.jsonl.gz", tmp_path / "driven.jsonl"
    with RunningExporter(["demo", "--scenario", "uneven_split"], tmp_path) as exporter:
        exporter.wait_for(shows_all_stages)
        ended = await diagnose(
            f"--exporter={exporter.url}", f"--duration={SECONDS}", f"--save={watched}"
        )
        async with StreamingServer() as server:
            loaded = await diagnose(
                f"--exporter={exporter.url}",
                f"--url={server.url}",
                f"--save={driven}",
                *("--concurrency=1", "--requests=3", "--max-tokens=16", "--prompt-tokens=16"),
                "--warmup=0",
            )
        exporter.terminate()

    answer = ended.answer
    assert list(answer) == CONTRACT
    assert answer["verdict"] in {"uneven_split", "cannot_tell"} or answer["confidence"] < CONFIDENT
    assert len(answer["figures"]["stages"]) == 8
    assert answer["figures"]["window_seconds"] == pytest.approx(SECONDS, abs=4.0)
    assert answer["figures"]["log"]["decode_lines"] > 0
    again = diagnose_recording(watched).diagnosis
    assert (again.verdict, again.confidence) == (answer["verdict"], answer["confidence"])

    assert list(loaded.answer) == CONTRACT
    (load,) = loaded.answer["figures"]["load"]
    assert load["completed"] >= 3
    types = [json.loads(line)["type"] for line in driven.read_text().split("\n")[:-1]]
    assert (types.count("load"), types.count("reference")) == (2, 1)
    assert {"log", "util", "power", "gauges", "server", "map", "gpu"} <= set(types)


async def test_an_address_where_nobody_listens_is_an_error(unused_tcp_port: int) -> None:
    ended = await diagnose(f"--exporter=http://me:geheim@127.0.0.1:{unused_tcp_port}")
    assert ended.code == EXIT_ERROR
    assert "connection refused; is it running" in ended.answer["error"]
    assert "geheim" not in ended.said + ended.printed
    assert "Traceback" not in ended.said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say what to look at: --recording, --log, --attach, --url, --exporter"),
        (["--exporter=http://h:1", "--attach"], "--attach is about sources here"),
        (["--exporter=http://h:1", "--recording=x.jsonl"], "--recording is about sources here"),
        (["--exporter=http://h:1", "--file=x.log"], "--file is about sources here"),
        (["--exporter=http://h:1", "--rate=3"], "--rate is about a load"),
        (["--exporter=h:1"], "cannot use the address of --exporter"),
    ],
)
def test_options_that_do_not_go_together_are_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--json", *arguments]) == EXIT_ERROR
    assert said in json.loads(capsys.readouterr().out)["error"]
