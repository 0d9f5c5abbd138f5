"""The configuration of a running exporter changes: what stays goes on, what goes leaves nothing."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_nvml import FakeNvml
from tests.journal_lives import UNIT, BusyServer, counts_of, decode_line, journal_entries
from tests.journal_writer import JournalWriter, journal_remote
from tests.reloading import Document, Reloadable
from tests.running import Metrics

CHANGES = 20


# --- under load --------------------------------------------------------------------------------


class Changes:
    """One configuration after the other; the busy server is in all of them."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self._directories = [directory, directory.with_name("same-journal")]
        self._directories[1].symlink_to(directory)

    def next(self) -> Document:
        chance, busy = self._chance, {"name": "sglang", "unit": UNIT}
        if chance.random() < 0.5:
            busy |= {"url": f"http://127.0.0.1:{chance.choice((1, 2))}"}
        if chance.random() < 0.5:
            busy |= {"stages": {0: [chance.randrange(2)], 1: [1]}}
        if chance.random() < 0.5:
            busy |= {"facts": {"decode_log_interval": chance.randrange(2, 50)}}
        others = [
            {"name": f"other-{number}", "files": [f"/nowhere/{chance.randrange(2)}/*.log"]}
            for number in range(chance.randrange(3))
        ]
        # Two may not share an input.
        others = [other | {"files": [f"{other['files'][0]}.{other['name']}"]} for other in others]
        servers = [busy, *others]
        chance.shuffle(servers)
        return {
            "servers": servers,
            "from_start": True,
            "nvml": chance.random() < 0.5,
            "journal_directory": str(chance.choice(self._directories)),
        }


def change_often(folder: Path, changes: int, seed: int) -> tuple[Metrics, Counter[tuple[str, ...]]]:
    """What an exporter has counted whose configuration changed many times, and what it should."""
    fake = FakeNvml(folder / "nvml", 2)
    with JournalWriter(folder / "journal") as writer, BusyServer(writer, seed) as server:
        documents = Changes(writer.directory, seed)
        with Reloadable(folder, documents.next(), env=fake.environment()) as exporter:
            for _ in range(changes):
                exporter.change(documents.next())
                exporter.metrics()
            with server.paused():
                expected: Counter[tuple[str, ...]] = Counter()
                for entry in journal_entries(writer.directory).values():
                    expected.update(dict(entry.counts))
                shown = exporter.wait_for(
                    lambda seen: counts_of(seen)["lines",] >= expected["lines",]
                )
    return shown, expected


def check_changes(folder: Path, changes: int, seed: int) -> None:
    shown, expected = change_often(folder, changes, seed)
    assert expected["lines",] > changes
    assert counts_of(shown) == expected
    assert shown.value("exporter_journal_gaps_total") == 0
    assert shown.total("exporter_crashes_total") == 0


with_journal = pytest.mark.skipif(
    journal_remote() is None, reason="systemd-journal-remote is not installed"
)


@with_journal
def test_a_server_that_stays_is_counted_exactly_over_many_changes(tmp_path: Path) -> None:
    check_changes(tmp_path, CHANGES, seed=1)


@with_journal
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 7))
def test_a_server_that_stays_is_counted_exactly_over_two_hundred_changes(
    tmp_path: Path, seed: int
) -> None:
    check_changes(tmp_path, 200, seed)


# --- each kind of change -----------------------------------------------------------------------


class Log:
    """The log file of one server."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.log"
        self.path.touch()

    def write(self, *pp_ranks: int) -> None:
        with self.path.open("a") as file:
            file.writelines(f"{decode_line(pp_rank)}\n" for pp_rank in pp_ranks)


@pytest.fixture(name="a")
def fixture_a(tmp_path: Path) -> Log:
    return Log(tmp_path, "a")


@pytest.fixture(name="b")
def fixture_b(tmp_path: Path) -> Log:
    return Log(tmp_path, "b")


class Shared(Reloadable):
    """One process for many tests: each begins with a server of its own log.

    Attributes:
        read_before: Lines that earlier tests had it read.
    """

    read_before = 0.0

    def lines(self, seen: Metrics) -> float:
        """Lines read since the test began."""
        return seen.total("exporter_journal_lines_total") - self.read_before


@pytest.fixture(name="shared", scope="module")
def fixture_shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared")
    with Shared(folder, document(server("first", Log(folder, "first"))), "--no-nvml") as shared:
        yield shared


@pytest.fixture(name="running")
def fixture_running(shared: Shared, a: Log) -> Iterator[Shared]:
    shared.change(document(server("kimi", a)))
    seen = shared.wait_for(lambda s: s.value("exporter_source_up", source="files:kimi") == 1)
    assert batches(seen, "kimi") == {}, "nothing of the test before is left"
    shared.read_before = seen.total("exporter_journal_lines_total")
    a.write(0, 1, 1)
    shared.wait_for(lambda seen: shared.lines(seen) == 3)
    yield shared
    assert shared.metrics().total("exporter_crashes_total") == 0


def server(name: str, *logs: Log, **more: object) -> Document:
    return {"name": name, "files": [str(log.path) for log in logs], **more}


def document(*servers: Document) -> Document:
    return {"servers": list(servers)}


def batches(seen: Metrics, name: str) -> dict[str, float]:
    """By pp_rank."""
    found = seen.matching("stage_batches_total", server=name, mode="decode")
    return {dict(labels)["pp_rank"]: value for (_, labels), value in found.items()}


def anything_of(seen: Metrics, name: str) -> list[str]:
    """Series that name a server or one of its sources."""
    return [
        metric
        for metric, labels in seen
        if {name, f"files:{name}", f"server:{name}"} & set(dict(labels).values())
    ]


def test_a_new_server_appears_at_zero_and_the_old_one_goes_on(
    running: Shared, a: Log, b: Log
) -> None:
    b.write(0)  # before it was watched
    running.change(document(server("kimi", a), server("new", b, facts={"pp_size": 2})))
    seen = running.wait_for(lambda s: s.value("exporter_source_up", source="files:new") == 1)
    assert batches(seen, "new") == {"0": 0, "1": 0}
    a.write(1)
    b.write(1)
    seen = running.wait_for(lambda s: running.lines(s) == 5)
    assert batches(seen, "kimi") == {"0": 1, "1": 3}
    assert batches(seen, "new") == {"0": 0, "1": 1}


def test_of_a_removed_server_nothing_is_left_and_the_sums_stay(
    running: Shared, a: Log, b: Log
) -> None:
    probed = server("gone", b, url="http://127.0.0.1:1", facts={"pp_size": 4})
    running.change(document(server("kimi", a), probed))
    running.wait_for(lambda seen: seen.value("exporter_source_up", source="files:gone") == 1)
    b.write(0, 3)
    seen = running.wait_for(lambda seen: running.lines(seen) == 5)
    assert anything_of(seen, "gone")
    running.change(document(server("kimi", a)))
    seen = running.metrics()
    assert anything_of(seen, "gone") == []
    assert running.lines(seen) == 5
    assert '"gone"' not in running.get("/api/v1/pipeline").text
    b.write(2)
    running.change(document(server("kimi", a), server("gone", b)))
    b.write(2)
    seen = running.wait_for(lambda seen: running.lines(seen) == 6)
    assert batches(seen, "gone") == {"2": 1}, "as if it were new"


def test_a_renamed_server_goes_on_where_it_was_read_to(running: Shared, a: Log) -> None:
    running.change(document(server("kimi-2", a)))
    a.write(1, 0)
    seen = running.wait_for(lambda seen: running.lines(seen) == 5)
    assert batches(seen, "kimi-2") == {"0": 1, "1": 1}
    assert anything_of(seen, "kimi") == []


def test_a_server_with_one_more_file_keeps_its_counters(running: Shared, a: Log, b: Log) -> None:
    b.write(0, 0)
    running.change(document(server("kimi", a, b)))
    a.write(1)
    b.write(0)
    seen = running.wait_for(lambda seen: running.lines(seen) >= 5)
    assert batches(seen, "kimi") == {"0": 2, "1": 3}
    running.change(document(server("kimi", b)))
    a.write(1)
    b.write(1)
    seen = running.wait_for(lambda seen: running.lines(seen) == 6)
    assert batches(seen, "kimi") == {"0": 2, "1": 4}


def test_another_log_under_the_same_name_is_another_server(running: Shared, b: Log) -> None:
    b.write(0)
    running.change(document(server("kimi", b)))
    running.wait_for(lambda seen: seen.value("exporter_source_up", source="files:kimi") == 1)
    assert batches(running.metrics(), "kimi") == {}
    b.write(3)
    seen = running.wait_for(lambda seen: running.lines(seen) == 4)
    assert batches(seen, "kimi") == {"3": 1}


def test_facts_are_taken_and_withdrawn(running: Shared, a: Log) -> None:
    running.change(document(server("kimi", a, facts={"pp_size": 4, "tp_size": 2})))
    seen = running.metrics()
    assert seen.value("stages", server="kimi") == 4
    assert batches(seen, "kimi") == {"0": 1, "1": 2, "2": 0, "3": 0}
    running.change(document(server("kimi", a, facts={"pp_size": 2})))
    seen = running.metrics()
    assert seen.value("stages", server="kimi") == 2
    assert batches(seen, "kimi") == {"0": 1, "1": 2}
    assert seen.label_values("info", "tp_size") == {""}
    running.change(document(server("kimi", a)))
    a.write(3)
    assert batches(running.wait_for(lambda seen: running.lines(seen) == 4), "kimi")["3"] == 1


def test_gpus_and_their_stages_are_taken_and_given_back(tmp_path: Path, a: Log) -> None:
    fake = FakeNvml(tmp_path / "nvml", 2)
    plain = document(server("kimi", a, facts={"pp_size": 2}))
    mapped = document(server("kimi", a, facts={"pp_size": 2}, stages={0: [1], 1: [0]}))
    with Reloadable(tmp_path, plain | {"nvml": False}, env=fake.environment()) as running:
        assert running.metrics().matching("gpu_info") == {}
        running.change(plain)
        running.wait_for(lambda seen: seen.label_values("gpu_info", "pp_rank") == {""})
        running.change(mapped)
        assert running.metrics().label_values("gpu_info", "pp_rank", gpu="1") == {"0"}
        running.wait_for(lambda seen: seen.total("gpu_resident_seconds_total", gpu="1") > 0)
        running.change(mapped | {"nvml": False})
        seen = running.metrics()
        assert not [name for name, _ in seen if name.startswith("sglang_pipeline_gpu_")]
        assert not seen.matching("exporter_source_up", source="nvml")
        assert not seen.matching("exporter_nvml_call_seconds_count")
        running.change(mapped)
        running.wait_for(lambda seen: seen.label_values("gpu_info", "pp_rank") == {"0", "1"})
        assert running.metrics().total("exporter_crashes_total") == 0


# --- what does not change ----------------------------------------------------------------------


def test_a_bad_file_keeps_the_old_configuration_and_names_all_mistakes(
    running: Shared, a: Log
) -> None:
    good = running.config.read_text()
    running.config.write_text("servers: [{unit: a, file: b}]\nlisten: 5\n")
    answer = running.reload()
    assert answer.status == 422
    for mistake in ("servers[0].file: unknown setting", "listen: 5 is not ADDRESS:PORT"):
        assert mistake in answer.text
        assert mistake in running.said
    a.write(0)
    seen = running.wait_for(lambda seen: running.lines(seen) == 4)
    assert seen.value("exporter_config_last_reload_successful") == 0
    running.config.unlink()
    answer = running.reload()
    assert (answer.status, "no such file" in answer.text) == (422, True)
    assert str(running.config) not in answer.text
    running.change(good)
    assert running.metrics().value("exporter_config_last_reload_successful") == 1


def test_what_needs_a_restart_stays_and_is_said(running: Shared, a: Log) -> None:
    running.change(document(server("kimi", a)) | {"state_file": "/nowhere/x"})
    assert "state_file stays as it was" in running.said
    assert running.metrics().value("exporter_config_last_reload_successful") == 1


def test_a_signal_reloads_and_a_get_does_not(running: Shared, a: Log, b: Log) -> None:
    assert running.get("/-/reload").status == 405
    running.config.write_text(str(document(server("kimi", a), server("new", b))))
    running.process.send_signal(signal.SIGHUP)
    running.wait_for(lambda seen: seen.value("exporter_source_up", source="files:new") == 1)
