"""What the title of a process says: its part in the server, and its ranks.

SGLang's children set their title (`setproctitle`), so the command line reads

    sglang::scheduler            up to 0.4.3, and where every size is 1
    sglang::scheduler_TP0_PP3    0.4.4 to 0.5.5
    sglang::scheduler_PP3_TP0    from 0.5.5.post1
    sglang::detokenizer          and other helpers

The order of the ranks says nothing; each is found by its name.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache


class Role(Enum):
    """What a process is to the server."""

    UNKNOWN = auto()
    SCHEDULER = auto()
    MAIN = auto()
    OTHER = auto()


_SCHEDULER = re.compile(r"sglang::scheduler(?![A-Za-z0-9])")
_RANK = re.compile(r"[ _]([A-Z]+(?:_[A-Z]+)*)([0-9]{1,4})(?![0-9A-Za-z])")


@lru_cache(maxsize=256)
def role_of(title: str | None) -> Role:
    """The part of a process in the server; UNKNOWN where there is no title.

    The main process keeps its command line, or is titled `sglang::server` under SGLang's own
    router. Its children run as Python's `multiprocessing` helpers until they take their title.
    """
    if title is None:
        return Role.UNKNOWN
    if _SCHEDULER.match(title):
        return Role.SCHEDULER
    if "sglang::" in title:
        return Role.MAIN if title.strip() == "sglang::server" else Role.OTHER
    return Role.MAIN if "sglang" in title and "multiprocessing" not in title else Role.OTHER


@lru_cache(maxsize=1024)
def _ranks(text: str) -> tuple[tuple[str, int], ...]:
    return tuple((kind, int(rank)) for kind, rank in _RANK.findall(text))


def ranks_named(text: str) -> dict[str, int]:
    """Ranks by SGLang's names (DP, PP, TP, EP, ATTN_CP, MOE_DP), from a title or a log bracket."""
    return dict(_ranks(text))
