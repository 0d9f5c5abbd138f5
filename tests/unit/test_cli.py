"""Exit codes and messages of commands that cannot start."""

from pathlib import Path

import pytest

from exporter.cli import EXIT_ERROR, main
from exporter.recorder import recording_to
from exporter.recordings.reader import read_records
from exporter.records import LoadEvent, LoadPhase


def test_a_recording_that_cannot_be_written_names_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "missing" / "now.jsonl"
    assert main(["record", "--stdin", "--no-nvml", "--output", str(output)]) == EXIT_ERROR
    said = capsys.readouterr().err
    assert f"cannot write the recording {output}" in said
    assert "--output" in said


def test_a_recording_that_broke_off_says_where_it_is_and_leaves_the_earlier_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = tmp_path / "now.jsonl"
    output.write_text("the one before")

    def broken_off() -> None:
        with recording_to(output) as writer:
            writer.write(LoadEvent(1.0, LoadPhase.START))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert output.read_text() == "the one before"
    assert f"seen until then is in {output}.partial" in caplog.text
    assert len(list(read_records(tmp_path / "now.jsonl.partial"))) == 1


def test_a_recording_of_nothing_is_an_error_and_leaves_the_earlier_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "now.jsonl"
    output.write_text("the one before")
    sources = [f"--file={tmp_path}/s.log", "--no-nvml", "--duration=0.1"]
    assert main(["record", *sources, f"--output={output}"]) == EXIT_ERROR
    assert "nothing was seen" in capsys.readouterr().err
    assert [entry.read_text() for entry in tmp_path.iterdir()] == ["the one before"]


def test_a_file_that_is_no_recording_is_named_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a recording\n")
    assert main(["replay", str(path), "--listen", "127.0.0.1:0"]) == EXIT_ERROR
    assert str(path) in capsys.readouterr().err
