"""What goes wrong around a diagnosis: a clear sentence, the right exit status, and what there is."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.cli import EXIT_ERROR, main
from exporter.diagnose.command import EXIT_CANNOT_TELL
from exporter.diagnosis.findings import Missing
from tests.journal_lives import decode_line
from tests.journal_writer import JournalWriter, journal_remote
from tests.scenarios.test_diagnose_live import SMALL, Ended, diagnose, end_of
from tests.streaming_server import StreamingServer

NOBODY = 65534
KEY = "sk-hidden-4711"
AS_NOBODY = f"""
import concurrent.futures.thread, os, sys
import exporter.check_command, exporter.cli, systemd.journal
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sys.exit(exporter.cli.main(sys.argv[1:]))
"""
"""The interpreter may lie where nobody else can read: everything is imported before."""
INTERRUPTED_EARLY = """
import os, signal, sys
from exporter.__main__ import main
class Interrupts:
    def find_spec(self, name, *_):
        if name == "exporter.config":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.exit(main())
"""
HERD = Path(__file__).parents[1] / "data" / "recordings" / "thundering_herd.jsonl.gz"
BRIEF = (*SMALL, "--duration=1")
WITHOUT_A_LINE = "No batch line of an SGLang server was seen"


async def with_key(key: str | None, *arguments: str) -> Ended:
    environment = {name: value for name, value in os.environ.items() if name != "SGLANG_API_KEY"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "exporter", "diagnose", "--no-nvml", "--json", *arguments),
        stdout=pipe,
        stderr=pipe,
        env=environment if key is None else environment | {"SGLANG_API_KEY": key},
    )
    return await end_of(process)


# --- the server --------------------------------------------------------------------------------


async def test_an_address_without_sglang_is_asked_about(tmp_path: Path) -> None:
    async with StreamingServer(apis=()) as server:
        ended = await diagnose(f"--url={server.url}", f"--file={tmp_path}/s.log", *BRIEF)
    assert ended.code == EXIT_ERROR
    assert "is it the base address of an SGLang server" in ended.answer["error"]


@pytest.mark.parametrize(("key", "wanted"), [(None, "an API key"), ("other", "another API key")])
async def test_a_key_that_is_missing_or_wrong_names_both_ways_to_give_it(
    key: str | None, wanted: str, tmp_path: Path
) -> None:
    async with StreamingServer(key=KEY) as server:
        ended = await with_key(key, f"--url={server.url}", f"--file={tmp_path}/s.log", *BRIEF)
    assert ended.code == EXIT_ERROR
    for said in (f"the server wants {wanted}", "--token-file", "SGLANG_API_KEY"):
        assert said in ended.answer["error"]


async def test_the_key_of_the_environment_is_good_for_the_servers_own_facts(
    tmp_path: Path,
) -> None:
    async with StreamingServer(key=KEY) as server:
        ended = await with_key(KEY, f"--url={server.url}", f"--file={tmp_path}/s.log", *BRIEF)
    assert ended.answer["figures"]["facts"]["pp_size"] == 4
    assert "401" not in ended.said
    assert KEY not in ended.said + ended.printed


# --- the log -----------------------------------------------------------------------------------


async def test_a_load_that_no_line_speaks_of_leaves_its_own_figures_and_a_remedy(
    tmp_path: Path,
) -> None:
    (tmp_path / "s.log").write_text("of another program\n")
    async with StreamingServer() as server:
        ended = await diagnose(
            f"--url={server.url}", f"--file={tmp_path}/s.log", *BRIEF, "--warmup=2"
        )
    assert ended.code == EXIT_CANNOT_TELL
    assert ended.said.count("no batch line was seen: is this the log") == 2, "at once, at the end"
    assert WITHOUT_A_LINE in ended.answer["summary"]
    assert ended.answer["missing"] == [Missing.LINES]
    assert "is this the log of the server?" in ended.answer["advice"][0]
    (load,) = ended.answer["figures"]["load"]
    assert load["output_tokens"] > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.skipif(journal_remote() is None, reason="systemd-journal-remote is not installed")
@pytest.mark.parametrize("loads", [False, True], ids=["watched", "loaded"])
async def test_a_journal_that_may_not_be_read_names_the_group(loads: bool, tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "journal") as writer:
        writer.write("hidden")
        writer.flush()
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    writer.active_file.chmod(0o600)
    async with StreamingServer() as server:
        what = (f"--url={server.url}", *BRIEF) if loads else ("--attach", "--duration=1")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", AS_NOBODY, "diagnose", "--json", "--no-nvml"),
            *(f"--journal-dir={writer.directory}", *what),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        ended = await end_of(process)
    if loads:
        assert ended.code == EXIT_CANNOT_TELL
        assert ended.answer["figures"]["load"][0]["output_tokens"] > 0
        (said,) = ended.answer["figures"]["log_errors"]
    else:
        assert ended.code == EXIT_ERROR
        said = ended.answer["error"]
    assert "usermod -aG systemd-journal nobody" in said


async def test_a_look_that_is_too_short_says_what_would_do(tmp_path: Path) -> None:
    (tmp_path / "s.log").write_text(f"{decode_line(0)}\n" * 20)
    arguments = ("--attach", f"--file={tmp_path}/s.log", "--from-start", "--duration=2")
    ended = await diagnose(*arguments)
    assert ended.code == EXIT_CANNOT_TELL
    assert "No steady load was seen long enough" in ended.answer["summary"]
    assert any("--sweep 1,32" in each for each in ended.answer["advice"])


# --- the machine -------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there are GPUs here")
def test_without_a_gpu_the_log_alone_is_judged_and_the_driver_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "s.log").touch()
    arguments = ["diagnose", "--json", "--attach", f"--file={tmp_path}/s.log", "--duration=0.5"]
    assert main(arguments) == EXIT_CANNOT_TELL
    assert WITHOUT_A_LINE in json.loads(capsys.readouterr().out)["summary"]
    assert "--no-nvml" in caplog.text


# --- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [[], ["--attach", "--url=x"], ["--attach", "--duration=soon"], ["--no-such-option"]],
    ids=["nothing asked", "two at once", "no number", "unknown"],
)
def test_wrong_arguments_are_one_object_too(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "--json", *arguments]) == EXIT_ERROR
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] in err
    assert err.count("\n") == 1
    assert "--help tells more" in err
    assert main(["diagnose", *arguments]) == EXIT_ERROR
    assert capsys.readouterr().out == ""


def test_what_nobody_foresaw_is_an_error_and_no_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["diagnose", "--json", "--log", "no\0name"]) == EXIT_ERROR
    assert json.loads(capsys.readouterr().out) == {"error": "failed: ValueError"}


async def test_an_interrupted_diagnosis_of_a_file_is_no_healthy_one() -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "exporter", "diagnose", "--json", "--log", "-"),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
    )
    assert process.stdin is not None
    process.stdin.write(b"some text\n" * 100_000)
    await process.stdin.drain()  # more than a pipe holds: it reads
    process.send_signal(signal.SIGINT)
    ended = await end_of(process)
    assert ended.code == EXIT_ERROR
    assert ended.answer == {"error": "interrupted"}


def test_an_interrupt_while_it_starts_is_one_sentence() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_EARLY, "diagnose", "--json", "--attach"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == EXIT_ERROR
    assert json.loads(ended.stdout) == {"error": "interrupted"}
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left"), (">&-", "is closed")])
@pytest.mark.parametrize("what", [("compare", HERD, HERD), ("diagnose", "--recording", HERD)])
def test_a_report_that_cannot_be_printed_is_one_line_and_no_verdict(
    what: tuple[str, ...], where: str, why: str, form: tuple[str, ...]
) -> None:
    command = shlex.join(map(str, (sys.executable, "-m", "exporter", *what, *form)))
    ended = subprocess.run(
        ["/bin/sh", "-c", f"{command} {where}"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert ended.returncode == EXIT_ERROR
    assert why in ended.stderr
    assert ended.stderr.count("\n") == 1
