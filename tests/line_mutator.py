"""Real lines of SGLang's log, and what can become of them: cut, glued, renumbered, nested, …

    mutator = LineMutator(seed)
    line = mutator.line()

The same seed gives the same lines.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

from exporter.sglang_log import is_wanted
from tests.journal_export import DATA, REAL_JOURNALS, real_journal

KEY = "sk-hidden-4711"
"""Stands in the arguments of every server_args line."""
OTHER_SHARE = 0.1
"""Of lines that are no batch lines; arguments are long, and take long."""
INSERTS = (
    "\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\n", "\r", "\0", "\t", "\x1b[31m", "\ufeff", "\ud800",
    ", ", ": ", ",", ".", "]", "[", "{", "}", "(", ")", "'", '"', "\\", "-", "+", "%", " ", "\u0663", "\uff13",
    "9" * 15, "9" * 40, "-1", "1e9", "nan", "inf", "True", "None", "#running-req: 7", "Decode batch, ",
    "[2026-01-01 00:00:00 PP1] ", "server_args={'pp_size': 2}", " PP5", " TP1 PP9", "(x pid=1) ", "=",
)  # fmt: skip


class LineMutator:
    """Gives one line after the other, each a real one with up to three mutations.

    Attributes:
        dice: What chance is drawn from.
    """

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self._lines = real_lines()
        self._others = [line for line in self._lines if " batch" not in line]

    def line(self) -> str:
        """The next line."""
        dice = self.dice
        line = dice.choice(self._others if dice.random() < OTHER_SHARE else self._lines)
        for _ in range(dice.randint(0, 3)):
            line = dice.choice(MUTATIONS)(dice, line or " ", dice.choice(self._lines))
        return line


def own_title(message: str) -> str:
    """The title a scheduler of the line's own ranks would have."""
    return "_".join(["sglang::scheduler", *re.findall("[A-Z_]+[0-9]+", message.partition("]")[0])])


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
