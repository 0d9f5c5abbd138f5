"""A server that logs as fast as one likes, and knows what its lines have to count as.

    with JournalWriter(folder / "journal") as writer:
        server = FastServer(writer, seed=7)
        server.start()
        server.write(100_000)
        assert shown_counts(metrics) == server.expected

The mixture is that of a busy PP8 server: a pass of a stage takes 3.6 ms, `decode_log_interval` is 40
and about one request of 256 tokens begins a second, which gives 8 / (0.0036 s * 40) = 56 decode
lines, 8 prefill lines (one a stage and request) and 1 of the web server: 65 lines a second.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from typing import Protocol

from tests.journal_lives import MAIN, MAIN_PID, STAGES, Counts, counts_of, decode_line, stamped
from tests.running import Metrics

REAL_LINES_PER_SECOND = {"decode": 56, "prefill": 8, "web": 1}
_KINDS, _WEIGHTS = zip(*REAL_LINES_PER_SECOND.items(), strict=True)


class Journal(Protocol):
    """What is used of `JournalWriter`."""

    invocation: str | None

    def write(self, message: str | bytes, *, pid: int = ..., cmdline: str = ...) -> int:
        """Appends one entry."""

    def write_suppressed(self, count: int) -> int:
        """Journald's own word that it dropped messages."""

    def send(self) -> None:
        """Hands on what was written."""


class FastServer:
    """Writes lines of the real mixture; one in a thousand is forged, or journald's own.

    Attributes:
        expected: What its lines have to count as, in the words of `shown_counts`.
        stages: Of the launch that runs.
    """

    def __init__(self, journal: Journal, seed: int) -> None:
        self.expected: Counts = Counter()
        self.stages = STAGES
        self._journal = journal
        self._chance = random.Random(seed)
        self._first_pid = 200

    @property
    def lines(self) -> int:
        """Entries written so far that count as lines."""
        return self.expected["lines",]

    def start(self, stages: int = STAGES) -> None:
        """A new launch of so many stages: other processes, arguments, a prefill line a stage."""
        self.stages = stages
        self._first_pid += 100
        self._journal.invocation = uuid.UUID(int=self._chance.getrandbits(128)).hex
        self.write_line(stamped(f"server_args={{'pp_size': {stages}, 'tp_size': 1}}"))
        for rank in range(stages):
            self._prefill(rank)
        self.write_line(stamped("The server is fired up and ready to roll!"))
        self._journal.send()

    def write(self, lines: int) -> None:
        """Hands so many lines on."""
        chance = self._chance
        for kind in chance.choices(_KINDS, _WEIGHTS, k=lines):
            rank = chance.randrange(self.stages)
            if chance.random() < 0.001:
                self._refused_or_suppressed(rank)
            elif kind == "decode":
                self._decode(rank)
            elif kind == "prefill":
                self._prefill(rank)
            else:
                self.write_line('INFO:     127.0.0.1:9 - "POST /generate HTTP/1.1" 200 OK')
        self._journal.send()

    def write_line(
        self, text: str | bytes, pid: int = MAIN_PID, cmdline: str = MAIN, *, refused: str = ""
    ) -> None:
        """One entry of the main process, or of another; `refused`: the reason it must be."""
        self._journal.write(text, pid=pid, cmdline=cmdline)
        self.expected["lines",] += 1
        if refused:
            self.expected["rejected", refused] += 1

    def write_of(self, rank: int, text: str | bytes, *, refused: str = "") -> None:
        """One entry of a scheduler."""
        title = f"sglang::scheduler_PP{rank}"
        self.write_line(text, self._first_pid + rank, title, refused=refused)

    def _decode(self, rank: int) -> None:
        running = self._chance.randrange(1, 40)
        self._batch(decode_line(rank, running), "decode", rank, running)

    def _prefill(self, rank: int) -> None:
        new_seqs, tokens = self._chance.randrange(1, 5), self._chance.randrange(1, 8193)
        line = stamped(
            f"Prefill batch, #new-seq: {new_seqs}, #new-token: {tokens}, #cached-token: 0, "
            f"token usage: 0.05, #running-req: 3, #queue-req: 0, cuda graph: False",
            rank,
        )
        self._batch(line, "prefill", rank, new_seqs)
        self.expected["tokens", "prefill", str(rank)] += tokens

    def _batch(self, text: str, mode: str, rank: int, requests: int) -> None:
        self.write_of(rank, text)
        self.expected[mode, str(rank)] += 1
        self.expected["requests", mode, str(rank)] += requests

    def _refused_or_suppressed(self, rank: int) -> None:
        kind = self._chance.randrange(3)
        if kind == 0:
            self.write_line(decode_line(rank), refused="not_scheduler")
        elif kind == 1:
            self.write_of(rank, decode_line((rank + 1) % STAGES), refused="rank_mismatch")
        else:
            self._journal.write_suppressed(7)
            self.expected["suppressed",] += 7


def shown_counts(metrics: Metrics) -> Counts:
    """What a scrape shows of what such a server expects, zeros left out.

    `counts_of`, and besides ("tokens", "prefill", pp_rank) and ("requests", mode, pp_rank).
    """
    counts = counts_of(metrics)
    for (_, labels), value in metrics.matching("stage_prefill_tokens_total").items():
        if dict(labels)["origin"] == "computed":
            counts["tokens", "prefill", dict(labels)["pp_rank"]] = round(value)
    for (_, labels), value in metrics.matching("stage_batch_requests_sum").items():
        counts["requests", dict(labels)["mode"], dict(labels)["pp_rank"]] = round(value)
    return +counts
