"""The report as a browser gets it: one file, whole, harmless whatever it holds, nothing left out."""

import base64
import gzip
import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from exporter.cli import main
from exporter.comparison.compared import Comparison, compare
from exporter.config import ConfigError
from exporter.diagnose.html_report.command import command_line
from exporter.diagnose.html_report.output import report_at
from exporter.diagnose.html_report.page import page
from exporter.diagnose.html_report.picture_pair import pair
from exporter.diagnose.outcome import Experiment, Outcome, diagnose_recording, diagnose_watch
from exporter.diagnose.reports import run_from
from exporter.diagnosis.figures import Figures
from exporter.diagnosis.picture import Picture, Pictures, Row
from exporter.diagnosis.verdict import diagnose
from exporter.diagnosis.watch import Watch
from exporter.load.failures import FailureKind
from exporter.load.measurements import Measurements
from exporter.load.plan import LoadPlan
from exporter.load.result import EndReason, LoadResult
from exporter.load.streaming import NewTokens
from exporter.pipeline.stage_cells import Shares
from tests.recording_ways import kept

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
HERD = RECORDINGS / "thundering_herd.jsonl.gz"
HEALTHY = RECORDINGS / "healthy.jsonl.gz"
RESTORE = """curl -d '{"pp_max_micro_batch_size": 256}' http://me:s3cret@host/set_internal_state"""
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


@cache
def healthy() -> Outcome:
    return diagnose_recording(HEALTHY)


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
    return replace(
        outcome,
        diagnosis=replace(diagnosis, figures=figures, evidence=evidence),
        experiment=Experiment(HOSTILE, 32, 4, None, HOSTILE, failed=True, restore_command=HOSTILE),
        troubles=(HOSTILE,),
    )


def cannot_tell() -> Outcome:
    return diagnose_watch(Watch())


def driven(outcome: Outcome | None = None, tokens: int = 14_886) -> Outcome:
    measurements = Measurements()
    measurements.add_tokens(NewTokens(10.5, 1, 0.25, first=True))
    measurements.add_tokens(NewTokens(10.6, 1, 0.031, first=False))
    measurements.add_failure(11.0, FailureKind.OVERLOADED)
    point = LoadResult(
        plan=LoadPlan(concurrency=32, output_tokens=64, duration_seconds=60.0),
        ended_by=EndReason.DURATION,
        started_at=10.0,
        ended_at=70.0,
        output_tokens=tokens,
        completed=230,
        short=0,
        errors={FailureKind.OVERLOADED: 7},
        warmup_errors={},
        delayed_arrivals=0,
        measurements=measurements,
    )
    return replace(outcome or herd(), points=(point,))


def tried(*, measured: bool = True, **changed: Any) -> Outcome:
    """The herd, and what would come of an even split."""
    after = driven(healthy(), 52_000) if measured else None
    experiment = Experiment("pp_max_micro_batch_size", 256, 4, after, **changed)
    return replace(driven(), experiment=experiment)


def stuck() -> Outcome:
    error = f"cannot put it back at http://me:s3cret@host: {RESTORE}"
    return tried(error=error, failed=True, restore_command=RESTORE)


def against_healthy(facts: dict[str, str] | None = None, **changed: Any) -> Comparison:
    before = run_from(healthy())
    known = {**before.facts, **(facts or {})}
    return compare(replace(before, facts=known, **changed), run_from(herd()))


COMMAND = "sglang-pipeline-exporter diagnose"
CASES: dict[str, Callable[[], str]] = {
    "herd": lambda: page(herd(), COMMAND, made_at=0.0),
    "hostile": lambda: page(
        hostile(), COMMAND, comparison=against_healthy({"version": HOSTILE, HOSTILE: HOSTILE})
    ),
    "cannot tell": lambda: page(cannot_tell(), COMMAND),
    "driven": lambda: page(driven(), COMMAND),
    "experiment": lambda: page(tried(), COMMAND),
    "failed experiment": lambda: page(stuck(), COMMAND),
    "compared": lambda: page(herd(), COMMAND, comparison=against_healthy()),
}


@pytest.fixture(name="text", params=CASES)
def _text(request: pytest.FixtureRequest) -> str:
    return CASES[request.param]()


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
        assert not [value for value in attrs.values() if value is not None and "://" in value]
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
    beside = {"experiment", "comparison"}  # where there are such
    assert set(Page(text).values("aria-labelledby")) - beside == expected


def test_the_same_outcome_gives_the_same_page() -> None:
    assert page(herd(), "x", made_at=0.0) == page(herd(), "x", made_at=0.0)


# --- what it says ------------------------------------------------------------------------------


def test_markup_from_outside_is_text_and_no_direction_is_turned() -> None:
    text = CASES["hostile"]()
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


# --- what stands beside the diagnosis ----------------------------------------------------------


def test_an_experiment_shows_what_it_gave_with_both_pictures_and_both_rings_of_slots() -> None:
    parsed = Page(page(tried(), "x"))
    said = parsed.text
    section = said[said.index("Experiment:") : said.index("What each stage did")]
    for words in (
        "pp_max_micro_batch_size 256 \u2192 4",
        "Keep it: start the server with --pp-max-micro-batch-size 4.",
        "Measured: 3.49 times the throughput",
        "output tokens/s 248.1 866.7 \u00d7 3.49",
        "Under the new value: Nothing is wrong",
        "The server has its old value: pp_max_micro_batch_size=256.",
    ):
        assert words in section
    pictures = [attrs for _, attrs in parsed.elements if attrs.get("role") == "img"]
    assert len(pictures) == 4
    widths = [
        attrs["width"]
        for tag, attrs in parsed.elements
        if (tag, attrs.get("height")) == ("rect", "100%")
    ]
    assert widths[:9] == ["100.0%", *["12.5%"] * 8]  # on one scale
    assert "alert" not in parsed.values("role")


def test_a_value_that_may_not_be_back_is_told_first_with_the_command_and_no_advice() -> None:
    parsed = Page(page(stuck(), "x"))
    command = RESTORE.replace("me:s3cret", "***")
    told = f"THE SERVER MAY STILL HAVE pp_max_micro_batch_size=4. To put 256 back: {command}"
    assert "alert" in parsed.values("role")
    assert parsed.text.index(told) < parsed.text.index("effective micro-batches")
    assert "FAILED: cannot put it back at http://***@host: the command above." in parsed.text
    assert "Measured: 3.49 times" in parsed.text
    assert "Keep it" not in parsed.text
    assert "s3cret" not in parsed.text


def test_an_experiment_that_was_stopped_says_so_and_draws_nothing_more() -> None:
    outcome = tried(measured=False, error="stopped by a signal before the value was set")
    parsed = Page(page(outcome, "x"))
    assert "not finished: stopped by a signal before the value was set" in parsed.text
    assert "The server has its old value" in parsed.text
    assert len([attrs for _, attrs in parsed.elements if attrs.get("role") == "img"]) == 2


def test_an_experiment_without_anything_to_draw_says_so() -> None:
    blind = replace(driven(cannot_tell()), experiment=None)
    experiment = Experiment("pp_max_micro_batch_size", 256, 4, blind)
    text = Page(page(replace(blind, experiment=experiment), "x")).text
    assert "No pictures stand beside each other here" in text
    assert "Before: the sizes of the slots are not all seen" in text


def test_pictures_before_and_after_have_one_scale_whatever_their_resolution() -> None:
    figures = Figures()
    fine = Picture(100.0, 0.02, (Row(0, (0,), (Shares(1.0),) * 150, ((101.0, 32),)),))
    coarse = Picture(200.0, 0.2, (Row(0, (0,), (Shares(0.5),) * 75, ((201.0, 4), (214.0, 32))),))
    drawn = pair((Pictures(None, fine, ()), figures), (Pictures(None, coarse, ()), figures))
    assert drawn is not None
    before, after = drawn
    assert (before.columns, after.columns) == (150, 15)
    assert before.ticks == after.ticks
    assert [each.rows[0].marks for each in drawn] == ["M50.5 100V10", "M5.5 100V89"]


def test_without_a_zoom_of_both_the_steady_windows_stand_beside_each_other() -> None:
    rows = (Row(0, (0,), (Shares(1.0),) * 100),)
    shown = Pictures(Picture(100.0, 0.2, rows), None, ())
    windows = [Figures(window_started_at=105.1, window_ended_at=end) for end in (115.0, 113.0)]
    drawn = pair((shown, windows[0]), (shown, windows[1]))
    assert drawn is not None
    assert [each.columns for each in drawn] == [39, 39]
    assert pair((shown, windows[0]), (shown, Figures())) is None
    coarse = Pictures(Picture(100.0, 0.5, (Row(0, (0,), (Shares(1.0),) * 40),)), None, ())
    drawn = pair((shown, windows[0]), (coarse, windows[1]))
    assert drawn is not None
    assert [each.columns for each in drawn] == [35, 14]  # 7 s of both


def test_a_comparison_shows_its_sentence_figures_changed_flags_and_cautions() -> None:
    changed = against_healthy({"version": "0.5.9", "schedule_policy": "lpm"}, gpus=4)
    text = Page(page(herd(), "x", comparison=changed)).text
    section = text[text.index("Against the baseline: 0.14x the output") :]
    section = section[: section.index("What each stage did")]
    for words in (
        "gives 0.14 of the baseline's throughput at 32 streams",
        "Baseline: PP8",
        "output tokens/s, by the load 870.3 119.2 0.14x",
        "bubbles % of the time 4 88 +83",
        "They run on 4 and 8 GPUs",
        "version 0.5.9 0.5.23",
        "Not known of the candidate schedule_policy lpm",
    ):
        assert words in section


def test_a_log_that_could_not_be_read_is_told_before_the_figures() -> None:
    text = Page(page(replace(herd(), troubles=("a.log: permission denied",)), "x")).text
    assert text.index("a.log: permission denied") < text.index("effective micro-batches")


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


def test_a_baseline_stands_on_the_page_as_it_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.html"
    arguments = ["--recording", str(HERD), "--baseline", str(HEALTHY), "--html", str(target)]
    assert main(["diagnose", "--json", *arguments]) == 1
    summary = json.loads(capsys.readouterr().out)["comparison"]["summary"]
    assert summary in Page(target.read_text()).text


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
