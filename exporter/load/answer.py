"""What the events of one streamed answer say: tokens so far, the end, or a failure.

Read from sglang 0.5.5 and 0.5.23: `/v1/completions` and `/v1/chat/completions` send what is new and,
asked for `continuous_usage_stats`, the number of tokens so far; `/generate` sends all text so far
and `meta_info.completion_tokens`. A failure after the head has left stands in the stream: as
`{"error": {"code": 503, …}}`, or as a `finish_reason` of type `abort`.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from exporter.load.failures import FailureKind, RequestFailedError, kind_of_status


class Api(StrEnum):
    """An endpoint that streams tokens, by its path."""

    COMPLETIONS = "/v1/completions"
    NATIVE = "/generate"
    CHAT = "/v1/chat/completions"


class Answer:
    """One answer as far as it has come.

    Attributes:
        tokens: Output tokens so far. Without a count from the server each event with text is one
            token, until the count at the end corrects it.
        done: Whether the end of the stream was announced.
    """

    def __init__(self, api: Api, most_tokens: int) -> None:
        """Expects events of this endpoint, and at most as many tokens as were asked for."""
        self.tokens = 0
        self.done = False
        self._api = api
        self._most_tokens = most_tokens

    def feed(self, payload: bytes) -> None:
        """Takes one event.

        Raises:
            RequestFailedError: It announces a failure, or is no event of this endpoint.
        """
        if payload == b"[DONE]":
            self.done = True
            return
        event = _object(payload)
        _raise_announced(event)
        counted = self._native(event) if self._api is Api.NATIVE else self._openai(event)
        if not 0 <= counted <= self._most_tokens:
            raise RequestFailedError(FailureKind.UNUSABLE)
        self.tokens = max(self.tokens, counted)

    def _native(self, event: dict[str, Any]) -> int:
        facts = event.get("meta_info")
        if not isinstance(facts, dict):
            raise RequestFailedError(FailureKind.UNUSABLE)
        reason = facts.get("finish_reason")
        if isinstance(reason, dict) and reason.get("type") == "abort":
            code = _count(reason.get("status_code"))
            raise RequestFailedError(FailureKind.ABORTED if code is None else kind_of_status(code))
        counted = _count(facts.get("completion_tokens"))
        if counted is None:
            raise RequestFailedError(FailureKind.UNUSABLE)
        return counted

    def _openai(self, event: dict[str, Any]) -> int:
        choices = event.get("choices")
        if not isinstance(choices, list):
            raise RequestFailedError(FailureKind.UNUSABLE)
        choice = choices[0] if choices and isinstance(choices[0], dict) else {}
        if choice.get("finish_reason") == "abort":
            raise RequestFailedError(FailureKind.ABORTED)
        usage = event.get("usage")
        if isinstance(usage, dict):
            counted = _count(usage.get("completion_tokens"))
            if counted is not None:
                return counted
        # A held-back letter can come in an event of its own, so events may outnumber tokens.
        return min(self.tokens + (1 if _has_text(choice) else 0), self._most_tokens)


def _object(payload: bytes) -> dict[str, Any]:
    # Not chained: the decoder's errors carry the text they failed on.
    try:
        event = json.loads(payload)
    except (ValueError, RecursionError):
        raise RequestFailedError(FailureKind.UNUSABLE) from None
    if not isinstance(event, dict):
        raise RequestFailedError(FailureKind.UNUSABLE)
    return event


def _raise_announced(event: dict[str, Any]) -> None:
    error = event.get("error")
    if error is None:
        return
    code = _count(error.get("code")) if isinstance(error, dict) else None
    raise RequestFailedError(FailureKind.SERVER_ERROR if code is None else kind_of_status(code))


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return bool(delta.get("content") or delta.get("reasoning_content"))
    return bool(choice.get("text"))
