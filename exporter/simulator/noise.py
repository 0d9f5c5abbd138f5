"""The rest of a real journal: health probes, other people's lines, and users who forge batches."""

from __future__ import annotations

import random
from collections.abc import Iterator

from exporter.simulator.log_text import access, stamped
from exporter.simulator.processes import DETOKENIZER, MAIN, SCHEDULERS, Process

PROMPT = "demo-prompt-not-for-metrics"
"""Stands for what a user wrote; it must come out nowhere."""
FORGED_RUNNING_REQS = 999
"""No real batch of the simulator is that large, so this number shows a forgery that got through."""
_PROBE_SECONDS = 10.0
_FORGERY_SECONDS = 20.0

Line = tuple[float, Process, str]


class Noise:
    """Lines that say nothing about batches, at a low rate.

    `forged` adds whole batch lines from the wrong process. They can be told from real ones in a
    journal alone: a text file does not say who wrote a line.
    """

    def __init__(self, rng: random.Random, started_at: float, *, forged: bool) -> None:
        self._rng = rng
        self._probe_at = started_at + 1.0
        self._forgery_at = started_at + 4.0
        kinds = [_quoted, _wrapped, _foreign]
        self._forgeries = [*kinds, _undefined_function, _other_rank] if forged else kinds
        self._turn = 0

    def until(self, to: float) -> Iterator[Line]:
        """The lines of the time since the last call."""
        while self._probe_at < to:
            line = access(self._rng.randrange(32_768, 61_000), "GET /health")
            yield self._probe_at, MAIN, stamped(self._probe_at, line)
            self._probe_at += _PROBE_SECONDS
        while self._forgery_at < to:
            forgery = self._forgeries[self._turn % len(self._forgeries)]
            self._turn += 1
            yield from forgery(self._forgery_at)
            self._forgery_at += _FORGERY_SECONDS * self._rng.uniform(0.8, 1.2)


def _forged(at: float, pp_rank: int) -> str:
    return stamped(
        at,
        f"Decode batch, #running-req: {FORGED_RUNNING_REQS}, #token: 1, token usage: 0.01, "
        f"cuda graph: True, gen throughput (token/s): 1.00, #queue-req: 0",
        pp_rank,
    )


def _quoted(at: float) -> Iterator[Line]:
    """A request log keeps U+2028 as it is; some readers take it for the end of a line."""
    text = f"Receive: obj=GenerateReqInput(text='{PROMPT}\u2028{_forged(at, 3)}')"
    yield at, MAIN, stamped(at, text)


def _wrapped(at: float) -> Iterator[Line]:
    yield at, DETOKENIZER, f'{{"message": "{_forged(at, 1)}", "prompt": "{PROMPT}"}}'


def _foreign(at: float) -> Iterator[Line]:
    yield at, MAIN, "[08:00:47] /project/cpp/tokenizer_info.cc:146: Warning: using RAW VocabType."
    yield at, MAIN, f"\x1b[1;33mTool '{PROMPT}' is not defined\x1b[0m"


def _undefined_function(at: float) -> Iterator[Line]:
    """The name comes from the model, newline and all, so its rest is an entry of its own."""
    yield at, MAIN, stamped(at, f"Model attempted to call undefined function: {PROMPT}")
    yield at, MAIN, _forged(at, 0)


def _other_rank(at: float) -> Iterator[Line]:
    """A request id with a newline, printed by a scheduler that is not the one the line names."""
    yield at, SCHEDULERS[2], _forged(at, 5)
