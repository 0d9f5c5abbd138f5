"""Real lines, mutated by the million: no exception, no value out of bounds, no secret."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from math import isfinite

import pytest

from exporter import sglang_log
from exporter.admission import Admission
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
from tests.journal_export import DATA, REAL_JOURNALS, real_journal

KEY = "sk-hidden-4711"
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
INSERTS = (
    "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\n", "\r", "\0", "\t", "\x1b[31m", "\ufeff", "\ud800",
    ", ", ": ", ",", ".", "]", "[", "{", "}", "(", ")", "'", '"', "\\", "-", "+", "%", " ", "\u0663", "\uff13",
    "9" * 15, "9" * 40, "-1", "1e9", "nan", "inf", "True", "None", "#running-req: 7", "Decode batch, ",
    "[2026-01-01 00:00:00 PP1] ", "server_args={'pp_size': 2}", " PP5", " TP1 PP9", "(x pid=1) ", "=",
)  # fmt: skip


def real_lines() -> list[str]:
    """Every form there is, and the other lines we read; the arguments hold a key."""
    bodies = [
        json.loads(line)["message"]
        for line in (DATA / "sglang_lines" / "executed.jsonl").read_text().split("\n")
        if line
    ]
    lines = [f"[2026-11-30 08:50:23 PP3] {body}" for body in dict.fromkeys(bodies)]
    lines += [
        json.loads(line)["line"]
        for line in (DATA / "sglang_lines" / "constructed.jsonl").read_text().split("\n")
        if line
    ]
    journal = [
        entry["MESSAGE"].decode("utf-8", "replace")
        for name in REAL_JOURNALS
        for entry in real_journal(name)
        if is_wanted(entry.get("MESSAGE", b""))
    ]
    arguments = [
        line.replace("'api_key': None", f"'api_key': '{KEY}'")
        for line in journal
        if "server_args" in line
    ]
    lines += [line for line in journal if "server_args" not in line][::12]
    lines += [
        *arguments[:1],
        f"[2026-11-30 08:49:36] server_args=ServerArgs(api_key='{KEY}', a=<b c>, model_path='/m', pp_size=8)",
        "[2026-11-30 08:49:36 PP3] max_total_num_tokens=32768, max_running_requests=64, context_len=1",
        "[2026-11-30 08:49:36] The server is fired up and ready to roll!",
        "[2026-11-30 08:49:36 PP3] KV cache pool is full. Retract requests. #retracted_reqs: 1, "
        "#new_tokens_gained: 646, #new_token_ratio: 0.0980 -> 0.3487",
        "[2026-11-30 08:49:36 PP3] Scheduler hit an exception: Traceback (most recent call last):",
        "[2026-11-30 08:49:36 PP3] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
    ]
    return lines


# --- mutations ---------------------------------------------------------------------------------

Mutation = Callable[[random.Random, str, str], str]


def flip(dice: random.Random, line: str, _other: str) -> str:
    at = dice.randrange(len(line))
    return line[:at] + chr(ord(line[at]) ^ (1 << dice.randrange(7))) + line[at + 1 :]


def cut(dice: random.Random, line: str, _other: str) -> str:
    return (
        line[: dice.randrange(len(line))]
        if dice.random() < 0.5
        else line[dice.randrange(len(line)) :]
    )


def drop(dice: random.Random, line: str, _other: str) -> str:
    at = dice.randrange(len(line))
    return line[:at] + line[at + dice.randint(1, 12) :]


def duplicate(dice: random.Random, line: str, _other: str) -> str:
    at = dice.randrange(len(line))
    piece = line[at : at + dice.randint(1, 40)]
    return line[:at] + piece * dice.randint(2, 4) + line[at + len(piece) :]


def splice(dice: random.Random, line: str, other: str) -> str:
    return line[: dice.randrange(len(line))] + other[dice.randrange(len(other)) :]


def glue(dice: random.Random, line: str, other: str) -> str:
    return line + dice.choice(("", " ", ", ", "\u2028", "\x85", "\n")) + other


def insert(dice: random.Random, line: str, _other: str) -> str:
    at = dice.randrange(len(line) + 1)
    return line[:at] + dice.choice(INSERTS) + line[at:]


def renumber(dice: random.Random, line: str, _other: str) -> str:
    at = dice.randrange(len(line))
    digits = [place for place in range(at, min(at + 60, len(line))) if line[place].isdigit()]
    if not digits:
        return line
    number = dice.choice(
        ("0", "1", "65537", "-5", "9" * 15, "9" * 16, "\u0663", "1_0", "0x1", "1.05", "2.00")
    )
    return line[: digits[0]] + number + line[digits[0] + 1 :]


def swap_ranks(dice: random.Random, line: str, _other: str) -> str:
    end = line.find("]")
    ranks = " ".join(
        dice.choice(("DP", "PP", "TP", "EP", "ATTN_CP", "MOE_DP", "pp", "XX"))
        + str(dice.choice((0, 1, 3, 7, 64, 12345)))
        for _ in range(dice.randint(0, 4))
    )
    return f"[2026-11-30 08:50:23 {ranks}{line[end:]}"


def reorder(dice: random.Random, line: str, _other: str) -> str:
    fields = line.split(", ")
    dice.shuffle(fields)
    return ", ".join(fields)


def nest(dice: random.Random, line: str, _other: str) -> str:
    opener = dice.choice(
        ("[", "[[", "(", "{", "[2026-11-30 08:50:23 PP1] [", '{"message": "', "server_args={'a': '")
    )
    return opener + line + dice.choice(("", "]", ")", '"}', "'}"))


MUTATIONS: tuple[Mutation, ...] = (
    flip, cut, drop, duplicate, splice, glue, insert, renumber, swap_ranks, reorder, nest,
)  # fmt: skip


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


def own_title(message: str) -> str:
    """The title a scheduler of the line's own ranks would have."""
    return "_".join(["sglang::scheduler", *re.findall("[A-Z_]+[0-9]+", message.partition("]")[0])])


def mutate_and_check(count: int, seed: int) -> tuple[Counter[str], float]:
    """Mutates `count` lines one to three times; returns what became of them and µs a line."""
    dice = random.Random(seed)
    lines = real_lines()
    others = [line for line in lines if " batch" not in line]
    outcomes: Counter[str] = Counter()
    admission = Admission()
    started = time.process_time()
    for number in range(count):
        if number % LINES_IN_ONE_SERVER == 0:
            admission = Admission()
        message = dice.choice(lines if dice.random() < 0.8 else others)
        for _ in range(dice.randint(0, 3)):
            message = dice.choice(MUTATIONS)(dice, message or " ", dice.choice(lines))
        title = own_title(message) if dice.random() < 0.5 else dice.choice(TITLES)
        outcomes[check(message, title, admission, number)] += 1
    return outcomes, (time.process_time() - started) / count * 1e6


def test_mutated_lines_break_nothing():
    outcomes, _ = mutate_and_check(10_000, seed=20_261_130)
    reached = {Refusal.GLUED, Refusal.MALFORMED, Refusal.NOT_SCHEDULER, Refusal.RANK_MISMATCH,
               Refusal.RANK_OUT_OF_BOUNDS, Refusal.VALUE_OUT_OF_BOUNDS, Refusal.UNVERIFIABLE,
               Refusal.NOT_MAIN, Refusal.REPEATED_ARGS}  # fmt: skip
    assert {reason.value for reason in reached} <= outcomes.keys()
    assert {"accepted Batch", "accepted ServerFacts", "accepted ServerEvent"} <= outcomes.keys()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_million_mutated_lines_break_nothing():
    count = 2_000_000
    seed = random.SystemRandom().randrange(2**32)
    outcomes, microseconds = mutate_and_check(count, seed)
    print(
        f"\nmutated lines   {count:>9,}   seed {seed}   {microseconds:.1f} µs a line, checks included"
    )
    for outcome, lines in outcomes.most_common():
        print(f"{outcome:<22}{lines:>12,}")
