"""`diagnose --experiment`: measured before and after, and put back whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.cli import EXIT_ERROR, main
from exporter.config import Config, ServerConfig
from exporter.diagnose.command import EXIT_CANNOT_TELL
from exporter.diagnose.experiment import Trial, drive_experiment
from exporter.diagnose.experiment_report import experiment_figures, experiment_lines
from exporter.diagnose.live import DrivenLoad
from exporter.diagnose.outcome import diagnose_recording
from exporter.diagnosis.findings import Verdict
from exporter.load.micro_batch_cap import CapControl
from exporter.load.plan import LoadPlan
from exporter.simulator.scenarios import SCENARIOS, Cost
from tests.scenarios.test_diagnose_live import CONTRACT, SMALL, Ended, end_of, sent
from tests.simulated_sglang import SimulatedSglang
from tests.streaming_server import HOSTILE, StreamingServer

KEY, ADMIN_KEY = "sk-hidden-4711", "sk-admin-0815"
OLD, NEW = 32, 4
TRY = f"--experiment=pp_max_micro_batch_size={NEW}"
HERD = replace(
    SCENARIOS["thundering_herd"],
    cost=Cost(decode_request_seconds=0.0005),
    decode_log_interval=7,
)


@contextlib.asynccontextmanager
async def started(
    server: StreamingServer, folder: Path, *arguments: str, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "exporter", "diagnose", "--no-nvml", "--json", TRY)
    source = (f"--url={server.url}", f"--file={folder}/sglang.log")
    # What the machine that tests sets itself must not count.
    keys = {"SGLANG_API_KEY": "", "SGLANG_ADMIN_API_KEY": ""}
    process = await asyncio.create_subprocess_exec(
        *command,
        *source,
        *SMALL,
        *arguments,
        stdout=pipe,
        stderr=pipe,
        env=os.environ | keys | environment,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


# --- what it shows -----------------------------------------------------------------------------


async def test_a_herd_becomes_an_even_split_and_both_are_measured_over_their_own_time(
    tmp_path: Path,
) -> None:
    saved = tmp_path / "both.jsonl.gz"
    # A slot prints once in a second; its sizes want six lines.
    plan = LoadPlan(32, 16, 4096, warmup_seconds=1.0, duration_seconds=10.0)
    async with SimulatedSglang(HERD, tmp_path) as server:
        source = ServerConfig(name="sglang", files=(str(server.log_file),))
        outcome = await drive_experiment(
            Config(servers=(source,), from_start=True),
            DrivenLoad(server.url, plan, (32,)),
            Trial(CapControl(server.url), NEW),
            save=saved,
            driver=server.simulation.driver,
            proc_root=server.proc_root,
        )
        assert server.cap.history == [NEW, 256]
    experiment = outcome.experiment
    assert experiment is not None
    assert experiment.after is not None
    first, second = outcome.diagnosis.figures, experiment.after.diagnosis.figures
    assert outcome.diagnosis.verdict is Verdict.THUNDERING_HERD
    assert first.slots.sizes == (32,)
    assert second.slots.effective == pytest.approx(8.0, abs=0.5)
    assert first.facts["decode_log_interval"] == second.facts["decode_log_interval"] == 7
    assert second.facts["pp_max_micro_batch_size"] == NEW
    assert len(first.stages) == len(second.stages) == 8
    assert first.window_ended_at is not None
    assert second.window_started_at is not None
    assert first.window_ended_at < second.window_started_at

    figures = experiment_figures(outcome, experiment)
    assert (figures["from"], figures["to"], figures["restored"]) == (256, NEW, True)
    assert figures["error"] is None
    assert figures["gain"]["output_tokens_per_second"] > 3.0
    assert figures["gain"]["per_stream"] > 3.0
    assert figures["predicted_gain"] > 3.0
    assert figures["before"]["slot_sizes"] == (32,)
    assert list(figures["after"]) == CONTRACT
    lines = list(experiment_lines(outcome, experiment))
    assert max(map(len, lines)) <= 80
    assert "Keep it: start the server with --pp-max-micro-batch-size 4." in lines

    offline = diagnose_recording(saved).diagnosis
    assert offline.verdict is Verdict.THUNDERING_HERD
    assert offline.figures.slots.sizes == (32,)


async def test_the_verdict_is_of_the_server_as_it_is_and_the_experiment_stands_beside_it(
    tmp_path: Path,
) -> None:
    async with StreamingServer(key=KEY, admin_key=ADMIN_KEY) as server:
        keys = {"SGLANG_API_KEY": KEY, "SGLANG_ADMIN_API_KEY": ADMIN_KEY}
        html = f"--html={tmp_path}/report.html"
        async with started(server, tmp_path, "--requests=6", html, **keys) as process:
            ended = await end_of(process)
        assert server.cap.history == [NEW, OLD]
    assert ended.code == EXIT_CANNOT_TELL
    assert list(ended.answer) == [*CONTRACT, "experiment"]
    assert list(ended.answer["experiment"]["after"]) == CONTRACT
    assert ended.answer["experiment"]["error"] is None
    page = (tmp_path / "report.html").read_text()
    assert f"The server has its old value: pp_max_micro_batch_size={OLD}." in page
    assert KEY not in ended.said + ended.printed + page
    assert ADMIN_KEY not in ended.said + ended.printed + page


# --- signals -----------------------------------------------------------------------------------

Course = Callable[[StreamingServer, asyncio.subprocess.Process], Awaitable[None]]
"""What happens to a server and to the process that experiments on it."""


async def stopped_by(
    course: Course, folder: Path, *arguments: str, gate: int | None = None, history: list[int]
) -> Ended:
    """What a process leaves that is stopped by a signal; the server has its old value after it."""
    async with StreamingServer() as server:
        if gate is not None:
            server.cap.gates[gate] = asyncio.Event()
        async with started(server, folder, *arguments) as process:
            await course(server, process)
            ended = await end_of(process)
        assert (server.cap.value, server.cap.history) == (OLD, history), ended.said
    assert ended.code == EXIT_CANNOT_TELL, ended.said  # by the first load, without a log
    assert "Traceback" not in ended.said
    assert ended.answer["experiment"]["restored"] is True
    return ended


async def under_the_first_load(
    server: StreamingServer, process: asyncio.subprocess.Process
) -> None:
    await sent(server, 200)
    process.send_signal(signal.SIGINT)


async def between_the_loads(server: StreamingServer, process: asyncio.subprocess.Process) -> None:
    await sent(server, 64)
    await server.idle()
    process.send_signal(signal.SIGTERM)


async def while_it_is_set(server: StreamingServer, process: asyncio.subprocess.Process) -> None:
    await server.cap.becomes(NEW)
    process.send_signal(signal.SIGHUP)


async def under_the_second_load(
    server: StreamingServer, process: asyncio.subprocess.Process
) -> None:
    await server.cap.becomes(NEW)
    await sent(server, server.tokens_sent + 100)
    process.send_signal(signal.SIGTERM)


async def twice(server: StreamingServer, process: asyncio.subprocess.Process) -> None:
    """The second and third signal come while a server that is away gets its old value back."""
    await server.cap.becomes(NEW)
    await sent(server, server.tokens_sent + 100)
    server.cap.down = 3
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while b"putting" not in await process.stderr.readline():
        pass
    for number in (signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
        await asyncio.sleep(0)


async def while_it_is_put_back(
    server: StreamingServer, process: asyncio.subprocess.Process
) -> None:
    await server.cap.becomes(NEW)
    await server.cap.becomes(OLD)
    process.send_signal(signal.SIGTERM)
    server.cap.gates[OLD].set()


@pytest.fixture
def hang_ups_end() -> Iterator[None]:
    """Processes do not inherit that hang-ups are ignored, as they are where nohup runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hang_ups_end")
async def test_at_whatever_moment_a_signal_comes_the_old_value_is_back_and_the_rest_is_reported(
    tmp_path: Path,
) -> None:
    short, long, both = "--requests=6", "--requests=300", [NEW, OLD]
    at_once = asyncio.Semaphore(3)

    async def stopped(course: Course, *arguments: str, **expected: Any) -> Ended:
        async with at_once:
            return await stopped_by(course, tmp_path, *arguments, **expected)

    first, between, setting, second, repeated, back = await asyncio.gather(
        stopped(under_the_first_load, "--duration=60", history=[]),
        stopped(between_the_loads, short, history=[]),
        stopped(while_it_is_set, short, gate=NEW, history=both),
        stopped(under_the_second_load, long, history=both),
        stopped(twice, long, history=both),
        stopped(while_it_is_put_back, short, gate=OLD, history=both),
    )
    for ended in (first, between):
        assert "before the value was set" in ended.answer["experiment"]["error"]
        assert ended.answer["experiment"]["after"] is None
    for ended in (setting, second, repeated):
        assert "under the new value" in ended.answer["experiment"]["error"]
    assert back.answer["experiment"]["error"] is None
    assert list(back.answer["experiment"]["after"]) == CONTRACT


# --- failures ----------------------------------------------------------------------------------


async def failed(
    server: StreamingServer, folder: Path, course: Course | None = None, **environment: str
) -> Ended:
    """What an experiment leaves that fails after its first load was measured."""
    async with started(server, folder, "--requests=6", **environment) as process:
        if course is not None:
            await course(server, process)
        ended = await end_of(process)
    assert ended.code == EXIT_ERROR
    assert list(ended.answer) == [*CONTRACT, "experiment"]
    assert ended.answer["figures"]["load"][0]["completed"] >= 6
    error = ended.answer["experiment"]["error"]
    assert error in ended.said
    assert HOSTILE not in ended.said + ended.printed
    assert "Traceback" not in ended.said
    return ended


async def dies(server: StreamingServer, _process: asyncio.subprocess.Process) -> None:
    await server.cap.becomes(NEW)
    await server.stop()


async def sticks(server: StreamingServer, _process: asyncio.subprocess.Process) -> None:
    await server.cap.becomes(NEW)
    server.cap.stuck = True


async def test_a_failed_experiment_says_so_loudly_and_keeps_what_was_measured(
    tmp_path: Path,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        keyed, missing, dying, sticky = [
            await stack.enter_async_context(server)
            for server in (
                StreamingServer(key=KEY, admin_key=ADMIN_KEY),
                StreamingServer(),
                StreamingServer(),
                StreamingServer(),
            )
        ]
        missing.cap.missing = True
        refused, absent, dead, stuck = await asyncio.gather(
            failed(keyed, tmp_path, SGLANG_API_KEY=KEY),
            failed(missing, tmp_path),
            failed(dying, tmp_path, dies),
            failed(sticky, tmp_path, sticks),
        )
        assert (keyed.cap.history, missing.cap.history) == ([], [])
    for ended, remedy in ((refused, "SGLANG_ADMIN_API_KEY"), (absent, "restart it with")):
        assert remedy in ended.answer["experiment"]["error"]
        assert ended.answer["experiment"]["restored"] is True
    for ended in (dead, stuck):
        assert "curl -X POST" in ended.answer["experiment"]["error"]
        assert ended.answer["experiment"]["restored"] is False
    assert stuck.answer["experiment"]["after"] is not None


@pytest.mark.parametrize(
    ("cap", "said"),
    [({"most": 3}, "accepts"), ({"value": NEW}, "has now"), ({"value": None}, "tell")],
)
async def test_what_the_server_would_not_take_costs_no_load(
    cap: dict[str, int | None], said: str, tmp_path: Path
) -> None:
    async with StreamingServer(cap={"value": 2, **cap}) as server:
        async with started(server, tmp_path, "--duration=60") as process:
            ended = await end_of(process)
        assert server.prompts == []
    assert ended.code == EXIT_ERROR
    assert said in ended.answer["error"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--attach", TRY], "--experiment is about a load"),
        (["--recording=x.jsonl", TRY], "--experiment is about a load"),
        (["--url=http://127.0.0.1:1", "--sweep=1,8", TRY], "instead of --sweep"),
        (["--url=http://127.0.0.1:1", "--experiment=max_tokens=4"], "only pp_max_micro_batch_size"),
        (["--url=http://127.0.0.1:1", "--experiment=pp_max_micro_batch_size"], "whole number"),
        (["--url=http://127.0.0.1:1", TRY + "x"], "whole number"),
        (["--url=http://127.0.0.1:1", TRY + "0" * 5000], "whole number"),
    ],
)
def test_what_cannot_be_tried_is_named_before_anything_is_driven(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--json", *arguments]) == EXIT_ERROR
    assert said in json.loads(capsys.readouterr().out)["error"]
