"""Looks at the exporter, shared by scrapes when too many come."""

import gzip
from dataclasses import replace

import pytest

from exporter.exposition import LOOKS_AT_ONCE, LOOKS_PER_SECOND, Exposition, content_type_of
from exporter.snapshot import Snapshot
from tests.unit.test_collector import STATE, ExporterState
from tests.unit.test_pipeline_model import T, decode, facts, fold

OPENMETRICS = "application/openmetrics-text"


class Exporter:
    """Counts a line between any two looks at it, and keeps what positions were saved."""

    def __init__(self) -> None:
        self.now = 0.0
        self.running = 0
        self.saved: list[int] = []
        self.refused = {"busy": 0}

    def snapshot(self) -> Snapshot:
        self.running += 1
        return fold(facts(pp_size=2), decode(pp=1, running=self.running)).snapshot(T + 1)

    def state(self, snapshot: Snapshot) -> ExporterState:
        return STATE

    def scraped(self) -> None:
        self.saved.append(self.running)


@pytest.fixture(name="exporter")
def fixture_exporter() -> Exporter:
    return Exporter()


@pytest.fixture(name="exposition")
def fixture_exposition(exporter: Exporter) -> Exposition:
    return Exposition(
        exporter,
        lambda state: replace(state, http_refused=exporter.refused),
        clock=lambda: exporter.now,
    )


def text(exposition: Exposition, accept: str = "") -> str:
    return exposition.body(accept, packed=False).decode()


def running(exposition_text: str) -> int:
    start = "sglang_pipeline_stage_running_requests{"
    (line,) = (line for line in exposition_text.split("\n") if line.startswith(start))
    return round(float(line.rpartition(" ")[2]))


def test_scrapes_in_a_row_see_what_is_new_and_save_the_position_behind_that(
    exporter: Exporter, exposition: Exposition
) -> None:
    assert [running(text(exposition)) for _ in range(3)] == [1, 2, 3]
    assert exporter.saved == [1, 2, 3]


def test_too_many_scrapes_see_the_same_instant_in_every_format_and_save_no_other_position(
    exporter: Exporter, exposition: Exposition
) -> None:
    newest = [text(exposition) for _ in range(round(LOOKS_AT_ONCE))][-1]
    exporter.now += 0.9 / LOOKS_PER_SECOND
    assert text(exposition) == newest
    assert gzip.decompress(exposition.body("", packed=True)).decode() == newest
    assert running(text(exposition, OPENMETRICS)) == running(newest) == LOOKS_AT_ONCE
    assert exporter.saved[-1] == LOOKS_AT_ONCE
    exporter.now += 0.2 / LOOKS_PER_SECOND
    assert running(text(exposition)) == LOOKS_AT_ONCE + 1
    assert exporter.saved[-1] == LOOKS_AT_ONCE + 1


def test_however_many_scrape_ten_looks_a_second_are_made(
    exporter: Exporter, exposition: Exposition
) -> None:
    for _ in range(1_000):
        text(exposition)
        exporter.now += 0.005
    assert LOOKS_AT_ONCE + 48 <= exporter.running <= LOOKS_AT_ONCE + 51


def test_a_look_that_could_not_be_told_saves_no_position_and_is_not_shared(
    exporter: Exporter, exposition: Exposition
) -> None:
    exporter.refused = {"busy": "many"}  # type: ignore[dict-item]  # not a number
    with pytest.raises(ValueError, match="many"):
        text(exposition)
    assert exporter.saved == []
    exporter.refused = {"busy": 7}
    assert 'sglang_pipeline_exporter_http_refused_total{reason="busy"} 7.0' in text(exposition)
    assert exporter.saved == [2]


@pytest.mark.parametrize(
    "version", ["x", "", "9.1", "1.x.0", "9" * 5000, "\u0661.0.0", "1.0.0\x80"]
)
@pytest.mark.parametrize("kind", [OPENMETRICS, "text/plain"])
def test_a_version_that_does_not_exist_is_passed_over(kind: str, version: str) -> None:
    first = content_type_of(f"{kind}; version={version}")
    assert first == "text/plain; version=0.0.4; charset=utf-8"
    second = content_type_of(f"{kind};version={version},{OPENMETRICS}")
    assert second.startswith("application/openmetrics-text; version=1.0.0;")


@pytest.mark.parametrize("escaping", ["underscores", "values", "allow-utf-8"])
def test_names_need_no_escaping(exposition: Exposition, escaping: str) -> None:
    accept = f"{OPENMETRICS};version=1.0.0;escaping={escaping}"
    assert content_type_of(accept).endswith(f"; escaping={escaping}")
    assert running(text(exposition, accept)) == 1
