"""Changes are logged once, when they have settled."""

import logging
from dataclasses import replace

import pytest

from exporter.change_log import SETTLED_LOOKS, HintLog, MethodLog
from exporter.records import Method, SourceHealth
from exporter.snapshot import Snapshot
from tests.unit.test_collector import pipeline
from tests.unit.test_pipeline_model import T, decode, fold


def snapshot(method: Method | None) -> Snapshot:
    """One stage, known by that method."""
    figures = pipeline()
    stage = replace(figures.stages[0], method=method)
    seen = fold(decode()).snapshot(T)
    server = replace(seen.servers[0], pipelines=(replace(figures, stages=(stage,)),))
    return replace(seen, servers=(server,))


def lines(caplog: pytest.LogCaptureFixture, *methods: Method | None) -> list[str]:
    caplog.set_level(logging.INFO)
    method_log = MethodLog()
    for method in methods:
        method_log.look(snapshot(method))
    return [record.message for record in caplog.records]


def test_each_settled_change_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    said = lines(
        caplog, *[Method.RESIDENCY] * (SETTLED_LOOKS + 5), *[Method.POWER] * (SETTLED_LOOKS + 5)
    )
    assert said == [
        "working share is known by residency, before by nothing server=kimi dp_rank=0 pp_rank=0",
        "working share is known by power, before by residency server=kimi dp_rank=0 pp_rank=0",
    ]


def test_methods_that_alternate_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, *[Method.POWER, Method.RESIDENCY] * 20) == []


def test_an_unknown_method_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    settled = [Method.POWER] * SETTLED_LOOKS
    assert len(lines(caplog, *settled, None, None, None, *settled)) == 1


def test_a_hint_of_a_source_that_is_read_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    hints = HintLog()
    quiet = SourceHealth("journal:kimi", up=True, last_error="no entry of kimi.service yet")
    broken = SourceHealth("nvml", up=False, last_error="said elsewhere")
    for _ in range(3):
        hints.look((quiet, broken))
    assert [record.message for record in caplog.records] == [
        "no entry of kimi.service yet source=journal:kimi"
    ]
