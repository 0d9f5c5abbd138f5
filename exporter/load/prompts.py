"""Prompts of a chosen length that no prefix cache has seen.

SGLang's prefix cache is a tree over tokens: a prompt whose first tokens are new shares nothing with
any before it. So each prompt begins with tokens drawn anew for each load, and the rest comes from
the seed: the same load twice is the same work, and still misses what the first one left behind.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_FRESH_TOKENS = 8
"""Even of 32 words so many tell 10^12 prompts apart."""
_TEXT = (
    "time year people way day man thing life child world school state family student "
    "group country hand part place case week work system program number night point home "
    "water room area money"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The token ids prompts are made of, from `first` to just before `end`.

    All of them must be of the model's vocabulary: SGLang 0.5.23 does not check, and one beyond it
    ends the server (seen with `--device cpu`: `IndexError` in the embedding of the first stage).
    """

    first: int
    end: int


SPANS = (TokenIds(1000, 30_000), TokenIds(256, 1000))
"""The first is of ordinary tokens, many, so that experts see variety; the second is for small
vocabularies, beyond the special tokens and the single bytes of most."""


def fresh_salt() -> int:
    """A number that no other load has used."""
    return random.SystemRandom().getrandbits(64)


def token_prompt(ids: TokenIds, tokens: int, *, seed: int, salt: int, number: int) -> list[int]:
    """The prompt of request `number`, as exactly so many token ids."""
    span = range(ids.first, ids.end)
    fresh = min(tokens, _FRESH_TOKENS)
    head = _random(salt, number).choices(span, k=fresh)
    return head + _random(seed, number).choices(span, k=tokens - fresh)


def text_prompt(tokens: int, *, seed: int, salt: int, number: int) -> str:
    """The prompt of request `number` as text of about so many tokens: one a word."""
    head = _random(salt, number).choices(_WORDS, k=min(tokens, _FRESH_TOKENS))
    rest = _random(seed, number).choices(_WORDS, k=tokens - len(head))
    return " ".join(head + rest)


def _random(seed: int, number: int) -> random.Random:
    return random.Random(f"{seed}/{number}")  # noqa: S311  # workload, no secret
