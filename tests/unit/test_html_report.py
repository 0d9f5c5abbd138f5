"""The report as a browser gets it: one file, whole, harmless whatever it holds, nothing left out."""

import base64
import gzip
import hashlib
import os
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from exporter.cli import main
from exporter.config import ConfigError
from exporter.diagnose import Outcome, diagnose_recording, diagnose_watch
from exporter.diagnosis.figures import Figures
from exporter.diagnosis.verdict import diagnose
from exporter.diagnosis.watch import Watch
from exporter.html_report.command import command_line
from exporter.html_report.output import report_at
from exporter.html_report.page import page
from exporter.load.failures import FailureKind
from exporter.load.measurements import Measurements
from exporter.load.plan import LoadPlan
from exporter.load.result import EndReason, LoadResult
from exporter.load.streaming import NewTokens
from tests.recording_ways import kept

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
HERD = RECORDINGS / "thundering_herd.jsonl.gz"
SECTIONS = {
    "picture",
    "advice",
    "stages",
    "slots",
    "evidence",
    "missing",
    "load",
    "server",
    "reproduce",
}
HOSTILE = '<script>alert(1)</script>" onload="x\' & \u202e\x1b[31m'
VOID = {"meta", "br", "img", "link", "input", "hr"}
DRAWN_VOID = {"rect", "path", "line"}


@cache
def herd() -> Outcome:
    return diagnose_recording(HERD)


class Page(HTMLParser):
    """Elements, ids, texts; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs), (tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in DRAWN_VOID, tag
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.texts.append(data)

    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    def values(self, name: str) -> list[str]:
        return [value for _, attrs in self.elements if (value := attrs.get(name)) is not None]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def hostile() -> Outcome:
    """The herd, as a server would be seen that puts markup wherever it can."""
    outcome = herd()
    diagnosis = outcome.diagnosis
    facts = {"version": HOSTILE, HOSTILE: HOSTILE, "model_path": "x" * 100_000, "pp_size": 8}
    evidence = tuple(
        replace(each, quantity=HOSTILE, value=HOSTILE, expected=HOSTILE, source=HOSTILE)
        for each in diagnosis.evidence
    )
    figures = replace(diagnosis.figures, server=HOSTILE, facts=facts, window_chosen_by=HOSTILE)
    return replace(outcome, diagnosis=replace(diagnosis, figures=figures, evidence=evidence))


def cannot_tell() -> Outcome:
    return diagnose_watch(Watch())


def driven() -> Outcome:
    measurements = Measurements()
    measurements.add_tokens(NewTokens(10.5, 1, 0.25, first=True))
    measurements.add_tokens(NewTokens(10.6, 1, 0.031, first=False))
    measurements.add_failure(11.0, FailureKind.OVERLOADED)
    point = LoadResult(
        plan=LoadPlan(concurrency=32, output_tokens=64, duration_seconds=60.0),
        ended_by=EndReason.DURATION,
        started_at=10.0,
        ended_at=70.0,
        output_tokens=14_886,
        completed=230,
        short=0,
        errors={FailureKind.OVERLOADED: 7},
        warmup_errors={},
        delayed_arrivals=0,
        measurements=measurements,
    )
    return replace(herd(), points=(point,))


CASES = {"herd": herd, "hostile": hostile, "cannot tell": cannot_tell, "driven": driven}


@pytest.fixture(name="text", params=CASES)
def _text(request: pytest.FixtureRequest) -> str:
    return page(CASES[request.param](), "sglang-pipeline-exporter diagnose", made_at=0.0)


# --- whatever the outcome ----------------------------------------------------------------------


def test_the_page_is_well_formed(text: str) -> None:
    parsed = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    ids = parsed.values("id")
    assert len(ids) == len(set(ids))
    assert set(parsed.values("aria-labelledby")) <= set(ids)
    assert set(re.findall(r"url\(#([^)]*)\)", text)) <= set(ids)
    tables = [tag for tag, _ in parsed.elements if tag in ("table", "caption")]
    assert tables == ["table", "caption"] * (len(tables) // 2)


def test_nothing_is_asked_from_anywhere_and_no_script_runs(text: str) -> None:
    parsed = Page(text)
    assert not parsed.tags() & {"script", "img", "link", "iframe", "object", "embed", "base", "a"}
    for _, attrs in parsed.elements:
        assert not [name for name in attrs if name.startswith("on") or name in ("src", "href")]
        assert "style" not in attrs  # the policy would refuse it
    assert "://" not in text
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_the_policy_allows_the_own_style_sheet_and_nothing_else(text: str) -> None:
    policy = next(
        attrs["content"]
        for tag, attrs in Page(text).elements
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    )
    style = text.split("<style>")[1].split("</style>", maxsplit=1)[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def test_every_section_is_there(text: str) -> None:
    expected = SECTIONS if "What to try next" in text else SECTIONS - {"advice"}
    assert set(Page(text).values("aria-labelledby")) == expected


def test_the_same_outcome_gives_the_same_page() -> None:
    assert page(herd(), "x", made_at=0.0) == page(herd(), "x", made_at=0.0)


# --- what it says ------------------------------------------------------------------------------


def test_markup_from_outside_is_text_and_no_direction_is_turned() -> None:
    text = page(hostile(), "x")
    parsed = Page(text)
    assert '<script>alert(1)</script>" onload="x\' & \ufffd\ufffd[31m' in parsed.text
    assert not re.search("[\x1b\u202e]", text)
    assert "x" * 401 not in text
    assert len(text) < 100_000


def test_a_page_of_eight_stages_is_small() -> None:
    assert len(page(herd(), "x").encode()) < 150_000


def test_the_verdict_stands_on_top_with_confidence_and_gain() -> None:
    text = Page(page(herd(), "x")).text
    top = text.index("What each stage did")
    for words in ("thundering herd", "32 requests sit in 1 of 8", "Confidence 0.95", "7.1 times"):
        assert 0 <= text.index(words) < top


def test_a_verdict_that_cannot_be_told_says_what_is_missing() -> None:
    text = Page(page(cannot_tell(), "x")).text
    assert "No batch line of an SGLang server was seen" in text
    assert "batch lines of the server" in text
    assert "there is no time to show" in text


def test_empty_slots_are_shown() -> None:
    parsed = Page(page(herd(), "x"))
    assert [attrs.get("class") for tag, attrs in parsed.elements if tag == "rect"].count(
        "empty"
    ) == 7


def test_a_load_of_ours_is_reported_with_latencies_and_failures() -> None:
    text = Page(page(driven(), "x")).text
    for words in ("248.1", "time to first token 250.0 ms", "between tokens 31.0 ms", "230", "7 "):
        assert words in text
    assert "requests failed: " in text


def test_every_row_of_the_picture_is_described_for_those_who_cannot_see_it() -> None:
    parsed = Page(page(herd(), "x"))
    told = [attrs["aria-label"] for _, attrs in parsed.elements if attrs.get("role") == "img"]
    assert len(told) == 2
    for each in told:
        assert all(f"Stage {rank}: works" in (each or "") for rank in range(8))


def test_from_the_log_alone_no_cell_is_drawn_as_idle(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    whole.write_bytes(gzip.decompress(HERD.read_bytes()))
    outcome = diagnose_recording(kept(whole, tmp_path / "kept.jsonl", "log alone"))
    parsed = Page(page(outcome, "x"))
    fills = [
        attrs.get("fill") for tag, attrs in parsed.elements if tag == "path" and "fill" in attrs
    ]
    paths = [
        attrs["d"]
        for _, attrs in parsed.elements
        if "url(#look-unknown" in (attrs.get("fill") or "") and "d" in attrs
    ]
    assert len(fills) == len(paths) == 8
    assert set(paths) == {"M0 0V100H200V0Z"}


# --- the command -------------------------------------------------------------------------------


def test_the_command_can_be_pasted_into_a_shell() -> None:
    argv = ["diagnose", "--recording", "my run;rm -rf $HOME.jsonl", "--html", "it's.html"]
    assert command_line(argv) == (
        "sglang-pipeline-exporter diagnose --recording 'my run;rm -rf $HOME.jsonl' "
        "--html 'it'\"'\"'s.html'"
    )


@pytest.mark.parametrize(
    "argument",
    [
        "http://me:s3cret@host:30000",
        "--url=https://me:s3cret@host",
        "http://s3cret@host/v1",
        "http://me:s3@cret@host",
        "http://host/?api_key=s3cret",
        "http://host/#s3cret",
    ],
)
def test_a_key_in_an_address_is_not_shown(argument: str) -> None:
    command = command_line(["diagnose", "--url", argument])
    assert "s3" not in command
    assert "cret" not in command
    assert "host" in command


# --- the file ----------------------------------------------------------------------------------


def test_the_command_line_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.html"
    assert main(["diagnose", "--recording", str(HERD), "--html", str(target)]) == 1
    assert "thundering herd" in capsys.readouterr().out
    assert f"diagnose --recording {HERD} --html {target}" in Page(target.read_text()).text
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_page_that_cannot_be_written_is_said_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "missing" / "report.html"
    # Nobody listens there: the load would fail with another message.
    assert main(["diagnose", "--url", "http://127.0.0.1:1", "--html", str(target)]) == 3
    said = capsys.readouterr().err
    assert f"cannot write the report {target}: No such file or directory" in said
    assert "name a file in a folder that exists" in said


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write the report"), report_at(tmp_path):
        pass


def test_a_diagnosis_that_fails_leaves_the_page_of_before(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("before")
    with pytest.raises(RuntimeError), report_at(target):
        raise RuntimeError
    assert target.read_text() == "before"
    assert os.listdir(tmp_path) == ["report.html"]


def test_what_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    with report_at(target) as write:
        assert write is not None
        write("a\udc80b")
    assert target.read_text() == "a\\udc80b"


def test_a_verdict_on_figures_alone_has_a_page() -> None:
    outcome = Outcome(diagnose(Figures(window_seconds=60.0)), Watch(), ("sglang", 0))
    assert "Nothing dated was seen" in Page(page(outcome, "x")).text
