"""Exit codes and messages of commands that cannot start."""

from pathlib import Path

import pytest

from exporter.cli import EXIT_ERROR, main


def test_a_recording_that_cannot_be_written_names_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "missing" / "now.jsonl"
    assert main(["record", "--stdin", "--no-nvml", "--output", str(output)]) == EXIT_ERROR
    said = capsys.readouterr().err
    assert f"cannot write the recording {output}" in said
    assert "--output" in said


def test_a_file_that_is_no_recording_is_named_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a recording\n")
    assert main(["replay", str(path), "--listen", "127.0.0.1:0"]) == EXIT_ERROR
    assert str(path) in capsys.readouterr().err
