"""Which token ids a server certainly knows.

Asked is `/detokenize`, which answers in the server's main process: an id that has a text is of the
tokenizer, and so are the ones below it. A request with a guess could end the server instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from exporter.load.prompts import SPANS, TokenIds
from exporter.sources.server.answer import ANSWER_SECONDS, NoAnswerError, fetch

_CANDIDATES = 4
"""Tried at the end of a span: a single one may have no text of its own."""


async def known_token_ids(
    url: str, token: str | None, *, seconds: float = ANSWER_SECONDS
) -> TokenIds | None:
    """The largest span of ids whose end the server has a text for; `None`: it knows none of them."""
    for span in SPANS:
        ids = range(span.end - 1, span.end - 1 - _CANDIDATES, -1)
        question = json.dumps({"tokens": [[number] for number in ids]}).encode()
        try:
            body = await fetch(f"{url}/detokenize", token, seconds=seconds, post=question)
        except NoAnswerError:
            continue  # its tokenizer may raise on what it does not know
        for number, text in zip(ids, _texts(body), strict=False):
            if text:
                return TokenIds(span.first, number + 1)
    return None


def _texts(body: bytes) -> list[str]:
    """The text of each id; of an answer that is none, nothing."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return []
    texts = answer.get("text") if isinstance(answer, Mapping) else None
    if not isinstance(texts, list) or len(texts) != _CANDIDATES:
        return []
    return [text if isinstance(text, str) else "" for text in texts]
