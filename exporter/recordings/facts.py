"""The facts of a `server` line, which may hold anything → those that may be known, and what was wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from exporter.recordings.fields import EXACT_INTEGER, LABEL_LENGTH, NAME_LENGTH
from exporter.records import FactValue
from exporter.sglang.known_facts import FACTS, expectation, is_usable

_MOST_FACTS = 100


def is_fact(name: str, value: object) -> bool:
    """Whether a fact may be known at all; a key of the API never may, whoever wrote it there.

    Those that anything follows from must be within the bounds that hold for every origin.
    """
    if name in FACTS:
        return value is None or is_usable(name, value)
    if len(name) > NAME_LENGTH or not name.isprintable() or "api_key" in name:
        return False
    if isinstance(value, str):
        return len(value) <= LABEL_LENGTH and value.isprintable()
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or (isinstance(value, int) and abs(value) <= EXACT_INTEGER)


def known_facts(items: Iterable[tuple[str, Any]]) -> tuple[dict[str, FactValue], tuple[str, ...]]:
    """The facts that may be known; what each of the others should have been, if it has a known name."""
    allowed: dict[str, FactValue] = {}
    faults = []
    for name, value in items:
        if is_fact(name, value):
            if len(allowed) < _MOST_FACTS:
                allowed[name] = value
        elif name in FACTS:
            faults.append(f"`{name}` is not {expectation(name)}")
    return allowed, tuple(faults)
