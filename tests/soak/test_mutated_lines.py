"""Real lines, mutated by the million: no exception, no value out of bounds, no secret."""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector

from exporter import sglang_log
from exporter.admission import Admission
from exporter.collector import SnapshotCollector
from exporter.config import ServerConfig
from exporter.ingest import Feed, Ingest
from exporter.records import (
    Batch,
    LogLine,
    Record,
    Refusal,
    RefusedLine,
    ServerEvent,
    ServerFacts,
)
from exporter.sglang.batch_line import BatchLine
from exporter.sglang.server_args import ALLOWED
from exporter.sglang_log import is_wanted, parse_line, storable
from exporter.sources.journal.source import JournalMatch, JournalSource
from exporter.stage_map import StageMapper
from tests.fake_nvml.rig import Rig, machine
from tests.line_mutator import KEY, LineMutator, own_title

_NAMED_KEY = re.compile(f"api_key(?:=|': )'{KEY}'")
LINES_IN_ONE_SERVER = 20
TITLES = (
    None,
    "sglang::scheduler",
    "sglang::scheduler_PP3",
    "sglang::scheduler_TP0_PP0",
    "sglang::scheduler_DP1_PP2_TP3",
    "sglang::detokenizer",
    "/venv/bin/python -m sglang.launch_server",
)
# --- what must hold ----------------------------------------------------------------------------


def check(message: str, title: str | None, admission: Admission, number: int) -> str:
    """Puts one line through everything; returns what became of it."""
    parsed = parse_line(message)
    assert parsed == sglang_log._parse_slowly(message), message
    launch = None if title is None else "launch"
    record = admission.admit(LogLine("kimi", float(number), message, 7, title, launch))
    kept = storable(message)
    if KEY not in _NAMED_KEY.sub("", message):  # else a splice made it another field's value
        assert KEY not in repr(record)
        assert kept is None or KEY not in kept
    if parsed is None or isinstance(parsed, Refusal):
        assert kept is None, message
        assert record is None or record == RefusedLine("kimi", float(number), parsed)
        return "nothing" if parsed is None else parsed.value
    assert is_wanted(message.encode("utf-8", "replace")), message
    check_kept(parsed, kept)
    if isinstance(record, RefusedLine):
        return record.reason.value
    check_bounds(record)
    return f"accepted {type(record).__name__}"


def check_kept(parsed: object, kept: str | None) -> None:
    assert kept is not None
    assert kept.isascii() or kept.partition("server_args=")[1], kept
    assert kept.isprintable(), kept
    if isinstance(parsed, BatchLine):
        parsed = parsed._replace(figures=parsed.figures._replace(unknown_fields=0))
    assert parse_line(kept) == parsed, kept


def check_bounds(record: Record | None) -> None:
    if isinstance(record, Batch):
        counts = (record.running_reqs, record.new_seqs, record.queued_reqs, record.new_tokens,
                  record.cached_tokens, record.pending_tokens, record.retracted_reqs,
                  record.forward_iteration, record.unknown_fields)  # fmt: skip
        assert all(count is None or 0 <= count < 10**15 for count in counts), record
        assert (record.running_reqs or 0) <= 65_536
        ratios = [*record.token_usage_ratios.values(), record.forward_occupancy_ratio or 0.0,
                  record.forward_idle_occupancy_ratio or 0.0]  # fmt: skip
        assert all(0.0 <= ratio <= 1.05 for ratio in ratios), record
        assert record.token_usage_ratios.keys() <= {"kv", "full", "swa", "mamba"}
        assert isfinite(record.gen_throughput_tokens_per_second or 0.0)
        assert 0 <= record.pp_rank < 64
        assert 0 <= record.dp_rank < 4096
        assert 0 <= record.tp_rank < 4096
    elif isinstance(record, ServerFacts):
        assert all(len(value) <= 256 for value in record.facts.values() if isinstance(value, str))
        assert record.origin == "capacity_line" or record.facts.keys() <= ALLOWED.keys()
    elif isinstance(record, ServerEvent):
        assert record.count is None or 0 <= record.count <= 10_000_000
        assert record.pp_rank is None or 0 <= record.pp_rank < 64


# --- a whole exporter --------------------------------------------------------------------------

STAGES = 8
MOST_SERIES = 700
"""For one 8-GPU host with one 8-stage server (DESIGN.md)."""
LINES_A_SECOND = 1_000
MAIN = "/venv/bin/python -m sglang.launch_server"
OWN_TITLES = (
    *(f"sglang::scheduler_PP{rank}" for rank in range(STAGES)), MAIN, "sglang::detokenizer",
)  # fmt: skip
_STAMPED_RANK = re.compile(r" PP([0-7])\]")


class EightStages:
    """Admission, model and collector of a host with eight GPUs whose own processes log the lines.

    Attributes:
        lines: How many it was given.
        most_series: The longest exposition so far.
    """

    def __init__(self, rig: Rig, dice: random.Random) -> None:
        self.lines = 0
        self.most_series = 0
        self._rig = rig
        self._dice = dice
        unit = ServerConfig(
            "kimi", unit="kimi.service", stages={rank: (str(rank),) for rank in range(STAGES)}
        )
        source = JournalSource("kimi", JournalMatch(unit=unit.unit), is_wanted)
        self._ingest = Ingest(
            [Feed(source, "kimi")], mapper=StageMapper((unit,)), clock=lambda: rig.now
        )
        self._process = ProcessCollector(registry=None)
        rig.start()
        self._line("[2026-11-30 08:49:36] server_args=ServerArgs(pp_size=8, tp_size=1)", MAIN)
        self._line("[2026-11-30 08:49:40] The server is fired up and ready to roll!", MAIN)
        self.second()

    def take(self, message: str) -> None:
        """A line, more often than not from the process whose rank it names."""
        stamped = _STAMPED_RANK.search(message, 0, 60)
        if stamped is not None and self._dice.random() < 0.7:
            title = OWN_TITLES[int(stamped[1])]
        else:
            title = self._dice.choice(OWN_TITLES)
        self._line(message, title)
        self.lines += 1
        if self.lines % LINES_A_SECOND == 0:
            self.second()
        if self.lines % (20 * LINES_A_SECOND) == 0:
            self.check_exposition()

    def second(self) -> None:
        """The GPUs go on as well."""
        self._rig.round()
        for record in self._rig.records:
            self._ingest.handle(record)
        self._rig.records.clear()

    def check_exposition(self) -> None:
        """Bounded in number, labels and values."""
        families = self._families()
        samples = [sample for family in families for sample in family.samples]
        self.most_series = max(self.most_series, len(samples))
        assert len(samples) <= MOST_SERIES
        for name, labels, value, *_ in samples:
            assert isfinite(value), (name, labels)
            assert value >= 0, (name, labels)
            assert labels.get("dp_rank", "0") == "0", (name, labels)
            assert labels.get("pp_rank", "0") in "01234567", (name, labels)
            assert all(len(text) <= 256 for text in labels.values()), (name, labels)
            assert KEY not in str(labels)

    def _families(self) -> list[Metric]:
        snapshot = self._ingest.snapshot()
        state = self._ingest.state(snapshot)
        state = replace(state, driver=self._rig.rounds.tally.copy())
        return list(SnapshotCollector(snapshot, state, self._process).collect())

    def _line(self, message: str, title: str) -> None:
        pid = 4000 + OWN_TITLES.index(title)
        self._ingest.handle(LogLine("kimi", self._rig.now, message, pid, title, "launch"))


# --- the runs ----------------------------------------------------------------------------------


def mutate_and_check(count: int, seed: int, rig: Rig) -> tuple[Counter[str], float, int]:
    """Mutates `count` lines; returns what became of them, µs a line and the most series."""
    mutator = LineMutator(seed)
    dice = mutator.dice
    host = EightStages(rig, dice)
    outcomes: Counter[str] = Counter()
    admission = Admission()
    started = time.process_time()
    for number in range(count):
        if number % LINES_IN_ONE_SERVER == 0:
            admission = Admission()
        message = mutator.line()
        title = own_title(message) if dice.random() < 0.5 else dice.choice(TITLES)
        outcomes[check(message, title, admission, number)] += 1
        host.take(message)
    microseconds = (time.process_time() - started) / count * 1e6
    host.check_exposition()
    return outcomes, microseconds, host.most_series


def test_mutated_lines_break_nothing(tmp_path: Path) -> None:
    with machine(tmp_path) as rig:
        outcomes, _, most_series = mutate_and_check(10_000, 20_261_130, rig)
    reached = {Refusal.GLUED, Refusal.MALFORMED, Refusal.NOT_SCHEDULER, Refusal.RANK_MISMATCH,
               Refusal.RANK_OUT_OF_BOUNDS, Refusal.VALUE_OUT_OF_BOUNDS, Refusal.UNVERIFIABLE,
               Refusal.NOT_MAIN, Refusal.REPEATED_ARGS}  # fmt: skip
    assert {reason.value for reason in reached} <= outcomes.keys()
    assert {"accepted Batch", "accepted ServerFacts", "accepted ServerEvent"} <= outcomes.keys()
    assert most_series > 500  # the host shows everything it has


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_five_million_mutated_lines_break_nothing(tmp_path: Path) -> None:
    count = int(os.environ.get("SOAK_MUTATED_LINES", "5_000_000"))
    seed = random.SystemRandom().randrange(2**32)
    with machine(tmp_path) as rig:
        outcomes, microseconds, most_series = mutate_and_check(count, seed, rig)
    print(f"\n{count:,} mutated lines, seed {seed}: {microseconds:.1f} µs a line, checks included;")
    print(f"at most {most_series} series (budget {MOST_SERIES})\n\n| outcome | lines |\n|---|---|")
    for outcome, lines in outcomes.most_common():
        print(f"| {outcome} | {lines:,} |")
