"""Finds out how a server is spoken to: which endpoint streams, and the model's name.

Each way is tried with one request of two tokens, the best first:

1. `/v1/completions`: events hold only what is new.
2. `/generate`: each event repeats all text before, which costs both sides more.
3. `/v1/chat/completions`: all that some gateways offer.

Prompts are token ids, of exact length, where the server proves that it knows these ids; else words,
about one token each.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from exporter.load.answer import Api
from exporter.load.failures import MEANINGS, FailureKind, LoadError, RequestFailedError
from exporter.load.plan import LoadPlan, PlanError
from exporter.load.prompts import TokenIds, fresh_salt
from exporter.load.streaming import StreamingRequest, open_session
from exporter.load.target import Target, Work, request_body
from exporter.load.tokens import API_KEY_VARIABLE
from exporter.load.vocabulary import known_token_ids
from exporter.sources.server.answer import NoAnswerError, NoSuchPathError, NotAllowedError, fetch

TRIAL_SECONDS = 30.0
"""For two tokens: a large model under load may take 20 s for its first one."""
_TRIAL_TOKENS = 2
_MOST_NAME_CHARS = 512
_NEXT_WAY = {FailureKind.REJECTED, FailureKind.UNUSABLE, FailureKind.BROKEN_OFF}


class NoTargetError(LoadError):
    """No endpoint of the server streams tokens to us; the message says why and what to do."""


def check_address(url: str) -> None:
    """Checks that a text is the address of something, without asking there.

    Raises:
        NoTargetError: It is not.
    """
    wanted = "like http://127.0.0.1:30000"
    if not url.startswith(("http://", "https://")):
        raise NoTargetError(
            f"cannot load {url!r}: an address begins with http:// or https://, {wanted}"
        )
    try:
        parts = urlsplit(url)
        is_good = bool(parts.hostname) and parts.port != 0 and url.isprintable() and " " not in url
    except ValueError:
        is_good = False
    if not is_good:
        # Not repeated: a password may stand in it.
        raise NoTargetError(f"cannot load what --url names: it is no valid address, {wanted}")


async def find_target(
    url: str,
    token: str | None = None,
    *,
    model: str | None = None,
    trial_seconds: float = TRIAL_SECONDS,
) -> Target:
    """How the server at a base address is loaded; `model` instead of the first one it names.

    Raises:
        NoTargetError: Nobody is there, the key is wrong, or nothing there streams tokens.
    """
    url = url.rstrip("/")
    named, context_tokens = await _model(url, token, trial_seconds)
    failures: list[FailureKind] = []
    ids = await known_token_ids(url, token, seconds=trial_seconds)
    for target in _ways(url, token, model or named, ids, context_tokens):
        failure = await _try(target, trial_seconds)
        if failure is None or failure.kind is FailureKind.OVERLOADED:
            return target
        failures.append(failure.kind)
        if failure.kind not in _NEXT_WAY:
            break
    raise NoTargetError(f"cannot load {url}: {_why_none(failures, trial_seconds)}")


def _why_none(failures: list[FailureKind], trial_seconds: float) -> str:
    """What the ways that were tried, the last one last, say together."""
    last = failures[-1]
    if last is FailureKind.TIME_OUT:
        return (
            f"a request of {_TRIAL_TOKENS} tokens was not answered within {trial_seconds:g} s; "
            "is the server hung, or full of other requests?"
        )
    if last not in _NEXT_WAY:
        return MEANINGS[last]
    if FailureKind.BROKEN_OFF in failures:
        return "it breaks off its answers in the middle; its log may say why"
    return (
        "nothing there streams tokens; is it the base address of an SGLang server, like "
        "http://127.0.0.1:30000?"
    )


def check_fits(target: Target, plan: LoadPlan) -> None:
    """Checks that prompt and output fit into the model's context, where the server says its length.

    Raises:
        PlanError: They do not; each request would be refused.
    """
    wanted = plan.prompt_tokens + plan.output_tokens
    if target.context_tokens is not None and wanted >= target.context_tokens:
        raise PlanError(
            f"cannot drive this load: {plan.prompt_tokens} prompt and {plan.output_tokens} output "
            f"tokens do not fit into the model's context of {target.context_tokens}; ask for fewer"
        )


def _ways(
    url: str, token: str | None, model: str | None, ids: TokenIds | None, context_tokens: int | None
) -> Iterator[Target]:
    if model is not None:
        yield Target(url, token, Api.COMPLETIONS, model, ids, context_tokens)
    yield Target(url, token, Api.NATIVE, model, ids, context_tokens)
    if model is not None:
        yield Target(url, token, Api.CHAT, model, None, context_tokens)


async def _try(target: Target, seconds: float) -> RequestFailedError | None:
    work = Work(16, _TRIAL_TOKENS, 0, fresh_salt())
    body = request_body(target, work, 0)
    async with open_session(seconds) as session:
        request = StreamingRequest(session, target, _TRIAL_TOKENS, time.monotonic)
        try:
            await request.send(body, lambda _: None)
        except RequestFailedError as error:
            return error
    return None


async def _model(url: str, token: str | None, seconds: float) -> tuple[str | None, int | None]:
    """Name and context length of the first model; each `None` where the server does not say."""
    try:
        body = await fetch(f"{url}/v1/models", token, seconds=seconds)
    except NoSuchPathError:
        return None, None
    except NotAllowedError:
        wanted = "an API key" if token is None else "another API key than the one given"
        raise NoTargetError(
            f"cannot load {url}: the server wants {wanted} (401 or 403); give it with --token-file "
            f"FILE, or in the environment variable {API_KEY_VARIABLE}"
        ) from None
    except NoAnswerError as error:
        raise NoTargetError(str(error).replace("`url`", "--url")) from None
    # Not chained: the decoder's errors carry the text they failed on.
    try:
        answer = await asyncio.to_thread(json.loads, body)
    except (ValueError, RecursionError):
        return None, None
    models = answer.get("data") if isinstance(answer, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    if not isinstance(first, dict):
        return None, None
    name, length = first.get("id"), first.get("max_model_len")
    usable = isinstance(name, str) and 0 < len(name) <= _MOST_NAME_CHARS
    counted = isinstance(length, int) and not isinstance(length, bool) and length > 0
    return name if usable else None, length if counted else None
