"""The server that is loaded: where it is, how it is spoken to, and what a request to it says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from exporter.load.answer import Api
from exporter.load.prompts import TokenIds, text_prompt, token_prompt


@dataclass(frozen=True, slots=True)
class Target:
    """An endpoint of one server that was found to stream tokens.

    Attributes:
        url: Base address.
        token: Sent as a bearer token; never shown, not even by `repr`.
        model: Name of the model; `None` where the endpoint needs none.
        token_ids: What prompts are made of; `None`: of words, so that their length is about right.
        context_tokens: The most prompt and output may have together; `None`: the server did not say.
    """

    url: str
    token: str | None = field(repr=False)
    api: Api
    model: str | None = None
    token_ids: TokenIds | None = None
    context_tokens: int | None = None

    @property
    def address(self) -> str:
        """Where requests go."""
        return self.url + self.api.value


@dataclass(frozen=True, slots=True)
class Work:
    """The size of one request and what its prompt is drawn from."""

    prompt_tokens: int
    output_tokens: int
    seed: int
    salt: int


def request_body(target: Target, work: Work, number: int) -> bytes:
    """Request `number` of a load: a fixed number of output tokens, streamed."""
    prompt: list[int] | str
    if target.token_ids is None:
        prompt = text_prompt(work.prompt_tokens, seed=work.seed, salt=work.salt, number=number)
    else:
        prompt = token_prompt(
            target.token_ids, work.prompt_tokens, seed=work.seed, salt=work.salt, number=number
        )
    if target.api is Api.NATIVE:
        sampling = {"max_new_tokens": work.output_tokens, "ignore_eos": True, "temperature": 1.0}
        name = "text" if target.token_ids is None else "input_ids"
        body = {name: prompt, "sampling_params": sampling, "stream": True}
    else:
        body = _openai_body(target, prompt, work.output_tokens)
    return json.dumps(body, separators=(",", ":")).encode()


def _openai_body(target: Target, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 1.0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    if target.api is Api.CHAT:
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    return body
