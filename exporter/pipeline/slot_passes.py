"""Decode lines → passes over the slots: which line speaks of which slot, and how many there are.

Every active slot runs one batch a round, in a fixed order, a prefill or a decode. So the number of
batches run so far, modulo the number of active slots, names the slot. SGLang prints that number
when told to (forward iteration); else it is D for each decode line and one for each prefill line
between. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

LEAST_PERIODS = 3
"""A period is believed after this many repetitions."""
_LEAST_LINES = 6
_TELLING_SIZES = 3
_SEARCHED_LINES = 4  # a pass is complete within this many times its lines, or never


class Line(NamedTuple):
    """One decode line.

    `prefills` counts the prefill lines of the same process before it; `iteration` is the printed
    forward iteration.
    """

    at: float
    size: int
    prefills: int
    iteration: int | None
    queued: int


@dataclass(frozen=True, slots=True)
class Pattern:
    """Sizes repeat after that many batches, all of them different or not."""

    batches: int
    all_different: bool

    def shown(self, interval: int) -> int:
        """Lines after which they repeat."""
        return self.batches // math.gcd(self.batches, interval)


def batches_before(lines: Sequence[Line], interval: int) -> list[int]:
    """Batches run before each line, from any one beginning."""
    if all(line.iteration is not None for line in lines):
        return [line.iteration or 0 for line in lines]
    return [index * interval + line.prefills for index, line in enumerate(lines)]


def find_pattern(lines: Sequence[Line], slots: int, interval: int) -> Pattern | None:
    """The shortest pattern in which the newest sizes repeat; `None` if equal or without one.

    Equal sizes repeat after any number of batches, so they say nothing.
    """
    at = batches_before(lines, interval)
    for batches in range(2, slots + 1):
        shown = batches // math.gcd(batches, interval)
        count = max(LEAST_PERIODS * shown, _LEAST_LINES)
        if shown < 2 or len(lines) < count:
            continue
        sizes: dict[int, set[int]] = {}
        for batch, line in zip(at[-count:], lines[-count:], strict=True):
            sizes.setdefault(batch % batches, set()).add(line.size)
        if all(len(found) == 1 for found in sizes.values()):
            different = len(set.union(*sizes.values()))
            return Pattern(batches, different == shown) if different > 1 else None
    return None


def slots_by_pattern(
    pattern: Pattern, slots: int, interval: int, others: Sequence[int | None]
) -> tuple[int | None, str]:
    """The number of active slots behind a pattern, and the evidence for it.

    Two halves of the ring may look alike, so multiples are as good, and so is any number of which
    the log shows as many slots. What decides: room for no other number, other evidence (best
    first), or a pattern of three and more different sizes, which hardly occurs twice.
    """
    likely = [
        number
        for number in range(pattern.batches, slots + 1)
        if number // math.gcd(number, interval) % pattern.shown(interval) == 0
    ]
    if likely == [pattern.batches]:
        return pattern.batches, "period of the batch sizes"
    for other in others:
        if other in likely:
            return other, "period of the batch sizes and a known concurrency or activity"
    coprime = all(math.gcd(number, interval) == 1 for number in range(1, slots + 1))
    if pattern.all_different and pattern.batches >= _TELLING_SIZES and coprime:
        return pattern.batches, "period of the batch sizes"
    return None, "the batch sizes repeat, but more than one number of slots fits"


def passes(lines: Sequence[Line], active: int, interval: int) -> list[tuple[int, ...]]:
    """Sizes of all active slots in ring order, one tuple a pass, newest first.

    A pass is complete when every slot has shown; a slot that shows twice counts with the newer.
    """
    at = batches_before(lines, interval)
    found = []
    sizes: dict[int, int] = {}
    used = 0
    for batch, line in zip(reversed(at), reversed(lines), strict=True):
        sizes.setdefault(batch % active, line.size)
        used += 1
        if len(sizes) == active:
            found.append(tuple(sizes[slot] for slot in sorted(sizes)))
            sizes, used = {}, 0
        elif used >= _SEARCHED_LINES * active:
            break
    return found
