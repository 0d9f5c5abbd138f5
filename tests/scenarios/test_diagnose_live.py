"""`diagnose --attach` and `--url`: live sources, a simulated server, and one that streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from exporter.cli import EXIT_ERROR, main
from exporter.config import Config, ServerConfig
from exporter.diagnose.command import EXIT_CANNOT_TELL
from exporter.diagnose.live import attach
from exporter.diagnose.outcome import diagnose_recording
from exporter.diagnosis.findings import CONFIDENT, Verdict
from exporter.simulator import DemoServer
from tests.running import PATIENCE_SECONDS
from tests.streaming_server import HOSTILE, Misbehavior, StreamingServer

CONTRACT = [
    "verdict",
    "confidence",
    "summary",
    "evidence",
    "also",
    "gain",
    "advice",
    "missing",
    "figures",
]
HERD = Path(__file__).parents[1] / "data" / "recordings" / "thundering_herd.jsonl.gz"
WATCH_SECONDS = 22.0
ENDS_WITHIN_SECONDS = WATCH_SECONDS + PATIENCE_SECONDS
SMALL = ("--concurrency=2", "--max-tokens=16", "--prompt-tokens=16", "--warmup=0")


class Ended(NamedTuple):
    """What a process left."""

    code: int | None
    printed: str
    said: str

    @property
    def answer(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        answer = json.loads(self.printed)
        assert isinstance(answer, dict)
        return answer


async def start_with(*arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "exporter", "diagnose", *arguments)
    return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await start_with("--no-nvml", "--json", *arguments)


async def end_of(process: asyncio.subprocess.Process) -> Ended:
    printed, said = await asyncio.wait_for(process.communicate(), ENDS_WITHIN_SECONDS)
    return Ended(process.returncode, printed.decode(), said.decode())


async def diagnose(*arguments: str) -> Ended:
    return await end_of(await start(*arguments))


async def sent(server: StreamingServer, tokens: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS), server.changed:
        await server.changed.wait_for(lambda: server.tokens_sent >= tokens)


@contextlib.asynccontextmanager
async def world_of(scenario: str, folder: Path) -> AsyncIterator[DemoServer]:
    world = DemoServer(scenario, folder, text_log=True)
    await world.open()
    running = asyncio.create_task(world.run())
    try:
        yield world
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await world.close()


# --- watching ----------------------------------------------------------------------------------


async def test_a_watched_herd_is_named_or_left_open_and_its_recording_says_the_same(
    tmp_path: Path,
) -> None:
    saved = tmp_path / "herd.jsonl.gz"
    async with world_of("thundering_herd", tmp_path) as world:
        log_file = str(world.log_file)
        server = ServerConfig(name="sglang", files=(log_file,))
        config = Config(servers=(server,), from_start=True)
        of_log, watched = await asyncio.gather(
            diagnose(
                "--attach", f"--file={log_file}", "--from-start", f"--duration={WATCH_SECONDS}"
            ),
            attach(
                config, WATCH_SECONDS, save=saved, driver=world.driver, proc_root=world.proc_root
            ),
        )

    diagnosis = watched.diagnosis
    named = {Verdict.THUNDERING_HERD, Verdict.CANNOT_TELL}
    assert diagnosis.verdict in named or diagnosis.confidence < CONFIDENT
    assert diagnosis.figures.window_seconds is not None
    assert len(diagnosis.figures.stages) == 8
    assert diagnose_recording(saved).diagnosis.verdict == diagnosis.verdict

    assert list(of_log.answer) == CONTRACT
    assert of_log.answer["verdict"] in named or of_log.answer["confidence"] < CONFIDENT
    assert of_log.answer["figures"]["log"]["decode_lines"] > 0
    assert "s left, occupancy ?, running" in of_log.said
    assert "load" not in of_log.answer["figures"]


async def test_a_log_that_is_not_there_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    ended = await diagnose("--attach", f"--file={tmp_path}/none.log", "--duration=1")
    assert ended.code == EXIT_ERROR
    assert "is the path right?" in ended.answer["error"]
    assert "Traceback" not in ended.said


async def test_stopped_by_a_signal_it_reports_what_it_has_seen(tmp_path: Path) -> None:
    async with world_of("healthy", tmp_path) as world, StreamingServer() as server:
        process = await start(f"--url={server.url}", f"--file={world.log_file}", *SMALL)
        await sent(server, 200)
        process.send_signal(signal.SIGINT)
        ended = await end_of(process)
    assert list(ended.answer) == CONTRACT
    (load,) = ended.answer["figures"]["load"]
    assert load["ended_by"] == "stopped"
    assert load["output_tokens"] > 0


# --- driving -----------------------------------------------------------------------------------


async def test_a_driven_load_is_measured_watched_and_saved(tmp_path: Path) -> None:
    saved = tmp_path / "driven.jsonl"
    async with world_of("healthy", tmp_path) as world, StreamingServer() as server:
        ended = await diagnose(
            f"--url={server.url}",
            f"--file={world.log_file}",
            f"--save={saved}",
            f"--html={tmp_path}/driven.html",
            "--sweep=1,2",
            "--requests=6",
            "--max-tokens=1000",  # more than comes in one piece
            f"--baseline={HERD}",
            *SMALL[2:],
        )
    answer = ended.answer
    assert ended.code == {"healthy": 0, "cannot_tell": EXIT_CANNOT_TELL}.get(answer["verdict"], 1)
    assert list(answer) == [*CONTRACT, "comparison"]
    first, second = answer["figures"]["load"]
    assert (first["concurrency"], second["concurrency"]) == (1, 2)
    assert second["completed"] >= 6
    assert second["output_tokens_per_second"] > 0
    for latency in ("time_to_first_token", "inter_token", "end_to_end"):
        assert second[latency]["p99_seconds"] >= second[latency]["p50_seconds"] >= 0
    assert second["errors"] == {}
    assert answer["figures"]["load_errors"] == []
    compared = answer["comparison"]
    assert compared["candidate"]["output_counted_by"] == "load"
    assert compared["figures"]["streams"]["candidate"] == 2
    assert compared["compared"] is False  # 2 streams against 32
    types = [json.loads(line)["type"] for line in saved.read_text().split("\n")[:-1]]
    assert types.count("load") == 4
    assert types.count("reference") == 1
    assert "log" in types
    page = (tmp_path / "driven.html").read_text()
    assert page.count("time to first token") == 2
    assert f"diagnose --no-nvml --json --url={server.url}" in page


async def test_a_server_that_goes_away_leaves_what_was_measured(tmp_path: Path) -> None:
    async with world_of("healthy", tmp_path) as world, StreamingServer() as server:
        process = await start(f"--url={server.url}", f"--file={world.log_file}", *SMALL)
        await sent(server, 200)
        await server.stop()
        ended = await end_of(process)
    assert ended.code == EXIT_ERROR
    assert ended.answer["verdict"] in set(Verdict)
    (load,) = ended.answer["figures"]["load"]
    assert load["ended_by"] == "all_failed"
    assert load["output_tokens"] > 0
    assert any("is the server up?" in told for told in ended.answer["figures"]["load_errors"])


@pytest.mark.parametrize(
    ("status", "remedy"), [(503, "--concurrency"), (429, "--concurrency"), (401, "API key")]
)
async def test_a_server_that_turns_all_away_is_an_error_with_a_remedy(
    status: int, remedy: str, tmp_path: Path
) -> None:
    async with StreamingServer() as server:
        server.always = Misbehavior(status=status, headers={"Retry-After": "0"})
        ended = await diagnose(f"--url={server.url}", f"--file={tmp_path}/s.log", *SMALL)
    assert ended.code == EXIT_ERROR
    assert remedy in ended.answer["error"]
    assert HOSTILE not in ended.said + ended.printed
    assert "Traceback" not in ended.said


async def test_a_key_that_is_missing_is_an_error_that_names_where_to_give_it(
    tmp_path: Path,
) -> None:
    async with StreamingServer(key="sk-hidden") as server:
        ended = await diagnose(f"--url={server.url}", f"--file={tmp_path}/s.log", *SMALL)
    assert ended.code == EXIT_ERROR
    assert "SGLANG_API_KEY" in ended.answer["error"]


async def test_an_address_where_nobody_listens_is_an_error(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    address = f"http://127.0.0.1:{unused_tcp_port}"
    saved = tmp_path / "keep.jsonl"
    saved.write_text("the one before")
    ended = await diagnose(
        f"--url={address}", f"--file={tmp_path}/s.log", f"--save={saved}", *SMALL
    )
    assert ended.code == EXIT_ERROR
    assert "connection refused" in ended.answer["error"]
    assert saved.read_text() == "the one before"


# --- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--attach", "--rate=3"], "--rate is about a load"),
        (["--attach", "--token-file=key"], "--token-file is about a load"),
        (["--recording=x.jsonl", "--save=y.jsonl"], "--save is about a live server"),
        (["--recording=x.jsonl", "--concurrency=3"], "it goes with --url or --log"),
        (["--recording=x.jsonl", "--rate=3"], "what is past had its own"),
        (["--url=localhost:30000"], "begins with http://"),
        (["--url="], "begins with http://"),
        (["--exporter="], "cannot use the address of --exporter"),
        (["--url=http://127.0.0.1:99999"], "no valid address"),
        (["--url=http://[::1"], "no valid address"),
        (["--url=http://"], "no valid address"),
        (["--url=http://127.0.0.1:1", "--requests=4"], "number of requests"),
        (["--url=http://127.0.0.1:1", "--concurrency=0"], "concurrency"),
    ],
)
def test_options_that_do_not_go_together_are_named(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--json", *arguments]) == EXIT_ERROR
    out, err = capsys.readouterr()
    assert said in json.loads(out)["error"]
    assert said in err


def test_a_recording_that_cannot_be_saved_names_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "now.txt").write_text("kept")
    for name in ("missing/now.jsonl", "now.txt"):
        arguments = ["diagnose", "--attach", f"--file={tmp_path}/s.log"]
        assert main([*arguments, "--no-nvml", f"--save={tmp_path / name}"]) == EXIT_ERROR
        assert "--save" in capsys.readouterr().err
    assert (tmp_path / "now.txt").read_text() == "kept"
