"""The whole way from a recording to the exposition, over files that a person can read.

`make golden` rewrites what is expected; review the difference like code.
"""

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from exporter.metric_catalog import CATALOG
from exporter.replay import replay_once
from exporter.sglang_log import is_wanted, storable
from tests.journal_export import real_journal

DATA = Path(__file__).parent / "data"
GOLDEN = Path(__file__).parent / "golden"
RECORDINGS = ("healthy", "thundering_herd", "stage_imbalance")
JOURNALS = ("pp8_default", "pp4_mmb8_i41", "pp4_burst_i7_iters")


def recording_of(journal: str, path: Path) -> Path:
    """A real journal as a recording: what `record` would have kept of it."""
    lines = [{"type": "header", "format": "sglang-pipeline-recording", "version": 1, "created": 0}]
    for entry in real_journal(journal):
        message = entry.get("MESSAGE", b"")
        text = storable(message.decode()) if is_wanted(message) else None
        if text is None:
            continue
        line = {
            "type": "log",
            "t": int(entry["__REALTIME_TIMESTAMP"]) / 1e6,
            "server": "sglang",
            "pid": int(entry["_PID"]),
            "message": text,
        }
        title = entry["_CMDLINE"].decode()
        if title.startswith("sglang::scheduler"):
            line["title"] = title
        lines.append(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(name="shown", scope="module", params=(*RECORDINGS, *JOURNALS))
def fixture_shown(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    """The name of a case and what `replay --once` prints of it."""
    name = request.param
    path = DATA / "recordings" / f"{name}.jsonl.gz"
    if name in JOURNALS:
        path = recording_of(name, tmp_path_factory.mktemp(name) / "recording.jsonl")
    text = replay_once(path)
    return name, re.sub(r'(python_version|version)="[^"]*"', r'\1="…"', text)


def test_a_recording_shows_the_same_metrics_as_before(
    shown: tuple[str, str], request: pytest.FixtureRequest
) -> None:
    name, text = shown
    path = GOLDEN / f"{name}.prom"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert text == path.read_text()


def test_promtool_accepts_what_is_shown(shown: tuple[str, str]) -> None:
    promtool = shutil.which("promtool")
    assert promtool, "promtool is missing: make system"
    lint = subprocess.run(
        [promtool, "check", "metrics"], input=shown[1].encode(), capture_output=True, check=False
    )
    assert (lint.stdout, lint.stderr) == (b"", b"")


def test_golden_files_hold_only_names_of_the_catalog() -> None:
    known = {spec.name for spec in CATALOG.values()}
    for path in GOLDEN.glob("*.prom"):
        for line in path.read_text().split("\n"):
            if line.startswith("# TYPE "):
                assert line.split(" ")[2] in known, f"{path.name}: {line}"


def test_every_recording_has_a_golden_file_and_no_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.prom")} == {*RECORDINGS, *JOURNALS}


def test_the_recordings_are_what_they_were() -> None:
    """A golden file is worth as much as its input."""
    for name in RECORDINGS:
        with gzip.open(DATA / "recordings" / f"{name}.jsonl.gz", "rt") as file:
            assert json.loads(next(file))["format"] == "sglang-pipeline-recording"
