"""An SGLang server that streams tokens, on loopback, and misbehaves on request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.running import PATIENCE_SECONDS

COMPLETIONS = "/v1/completions"
NATIVE = "/generate"
CHAT = "/v1/chat/completions"
HOSTILE = "a user's own \u2028 prompt"
"""What a server could repeat of its log or of other users; no report may show it."""


@dataclass(frozen=True)
class Misbehavior:
    """What is done to one request instead of answering it: after `tokens` proper ones."""

    tokens: int = 0
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    body: bytes = b""
    dies: bool = False
    hangs: bool = False


class StreamingServer:
    """One server. Requests are answered at once unless `pace` holds their tokens.

    Attributes:
        next: What happens to the requests to come, in their order; then all is well.
        always: What happens to every request.
        prompts: Prompt of each request it was sent, refused ones among them.
        most_at_once: Requests that streamed at the same time.
        tokens_sent: Output tokens, all requests together.
        crashed: It was sent a token id beyond its vocabulary.
    """

    def __init__(
        self, *, apis: tuple[str, ...] = (COMPLETIONS, NATIVE, CHAT), **facts: Any
    ) -> None:
        self.apis = apis
        self.key: str | None = facts.get("key")
        self.admin_key: str | None = facts.get("admin_key")
        self.model: str | None = facts.get("model", "kimi")
        self.context: int | None = facts.get("context", 8192)
        self.vocabulary: int | None = facts.get("vocabulary", 160_000)
        self.tokens_an_event: int = facts.get("tokens_an_event", 1)
        self.usage: bool = facts.get("usage", True)
        self.crashed = False
        self.next: deque[Misbehavior] = deque()
        self.always: Misbehavior | None = None
        self.pace = asyncio.Event()
        self.pace.set()
        self.prompts: list[Any] = []
        self.bodies: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.at_once = 0
        self.most_at_once = 0
        self.tokens_sent = 0
        self.changed = asyncio.Condition()
        self.cap = LiveCap(**facts.get("cap", {}))
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> StreamingServer:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, shutdown_timeout=0.01, handler_cancellation=True, access_log=None
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def streams(self, count: int) -> None:
        """Waits until so many requests stream at once."""
        async with asyncio.timeout(PATIENCE_SECONDS), self.changed:
            await self.changed.wait_for(lambda: self.at_once >= count)

    async def idle(self) -> None:
        """Waits until it took note that nobody listens any more."""
        async with asyncio.timeout(PATIENCE_SECONDS), self.changed:
            await self.changed.wait_for(lambda: self.at_once == 0)

    # --- answers -------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization"))
        wanted = self.key
        if request.path == "/set_internal_state" and self.admin_key is not None:
            wanted = self.admin_key
        if wanted is not None and self.tokens[-1] != f"Bearer {wanted}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path == "/v1/models" and self.model is not None:
            card = {"id": self.model, "max_model_len": self.context}
            return web.json_response({"object": "list", "data": [card]})
        if request.path in ("/server_info", "/set_internal_state"):
            return await self.cap.answer(request)
        if request.path == "/detokenize" and self.vocabulary is not None:
            tokens = (await request.json())["tokens"]
            return web.json_response(
                {"text": ["\u2028" * (t[0] < self.vocabulary) for t in tokens]}
            )
        if request.path not in self.apis:
            return web.json_response({"detail": HOSTILE}, status=404)
        body = await request.json()
        self.bodies.append(body)
        self.prompts.append(
            next(body[k] for k in ("prompt", "input_ids", "text", "messages") if k in body)
        )
        return await self._generate(request, body)

    async def _generate(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        trouble = self.next.popleft() if self.next else self.always
        if trouble is not None and trouble.status != 200:
            return web.json_response(
                {"error": HOSTILE}, status=trouble.status, headers=trouble.headers
            )
        prompt = self.prompts[-1]
        if isinstance(prompt[0], int) and max(prompt) >= (self.vocabulary or 0):
            self.crashed = True  # 0.5.23 does not survive this
        response = web.StreamResponse(headers=trouble.headers if trouble is not None else None)
        response.content_type = "text/event-stream" if trouble is None else trouble.content_type
        async with self._counted():
            await response.prepare(request)
            await self._stream(request, response, body, trouble)
        return response

    async def _stream(
        self,
        request: web.Request,
        response: web.StreamResponse,
        body: dict[str, Any],
        trouble: Misbehavior | None,
    ) -> None:
        wanted = body.get("max_tokens") or body["sampling_params"]["max_new_tokens"]
        async for event in self._events(
            request.path, wanted if trouble is None else trouble.tokens
        ):
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if trouble is None:
            await response.write(b"data: [DONE]\n\n")
            return
        if trouble.body:
            await response.write(trouble.body)
        if trouble.hangs:
            await asyncio.Event().wait()
        if trouble.dies:
            assert request.transport is not None
            request.transport.abort()

    async def _events(self, path: str, tokens: int) -> AsyncIterator[dict[str, Any]]:
        sent = 0
        while sent < tokens:
            await self.pace.wait()
            new = min(self.tokens_an_event, tokens - sent)
            sent += new
            self.tokens_sent += new
            yield self._event(path, new, sent, tokens)
        if path != NATIVE and tokens:
            yield {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": sent}}

    def _event(self, path: str, new: int, sent: int, tokens: int) -> dict[str, Any]:
        """What says that `new` tokens came, `sent` in all."""
        reason = "length" if sent == tokens else None
        if path == NATIVE:
            finish = {"type": "length", "length": tokens} if reason else None
            facts = {"id": "x", "completion_tokens": sent, "finish_reason": finish}
            return {"text": "\u2028" * sent, "output_ids": [7] * sent, "meta_info": facts}
        delta = {"content": " a"} if path == CHAT else None
        choice = {"index": 0, "finish_reason": reason}
        choice |= {"delta": delta} if delta else {"text": " a" * new}
        usage = {"prompt_tokens": 1, "completion_tokens": sent}
        return {"choices": [choice], "usage": usage if self.usage else None}

    @contextlib.asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        await self._count(1)
        try:
            yield
        finally:
            await self._count(-1)

    async def _count(self, step: int) -> None:
        async with self.changed:
            self.at_once += step
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.changed.notify_all()


class LiveCap:
    """`pp_max_micro_batch_size` of a server: read in `/server_info`, set live.

    Attributes:
        answers_true: Says that it was set even if it was not, as 0.5.5 does.
        status: Of the answer to setting it: releases before 0.5.3 set it and answer 500.
        stuck: Takes no other value any more.
        down: Reads and writes that fail with 503 before it works again.
        missing: Has no endpoint to set it.
        gates: By value: it is taken at once, but answered only when the gate opens.
        history: Each value that was taken.
    """

    def __init__(self, **facts: Any) -> None:
        self.value = facts.get("value", 32)
        self.most = facts.get("most", 32)
        self.name = facts.get("name", "pp_max_micro_batch_size")
        self.ranks = facts.get("ranks", 1)
        self.stages = facts.get("stages", 4)
        self.answers_true = facts.get("answers_true", False)
        self.status = facts.get("status", 200)
        self.stuck = False
        self.down = 0
        self.missing = False
        self.gates: dict[int, asyncio.Event] = {}
        self.history: list[int] = []
        self._changed = asyncio.Condition()

    async def becomes(self, value: int) -> None:
        """Waits until this value is taken."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._changed:
            await self._changed.wait_for(lambda: self.value == value)

    async def answer(self, request: web.Request) -> web.Response:
        if self.down > 0:
            self.down -= 1
            return web.json_response({"error": HOSTILE}, status=503)
        if request.path == "/server_info":
            state = {
                self.name: self.value,
                "pp_size": self.stages,
                "effective_max_running_requests_per_dp": self.most * self.stages,
            }
            return web.json_response(
                {"pp_size": self.stages, "internal_states": [state] * self.ranks}
            )
        if self.missing:
            return web.json_response({"detail": HOSTILE}, status=404)
        wanted = (await request.json())["server_args"][self.name]
        taken = 1 <= wanted <= self.most and not self.stuck
        if taken:
            self.value = wanted
            self.history.append(wanted)
            async with self._changed:
                self._changed.notify_all()
        if wanted in self.gates:
            await self.gates[wanted].wait()
        if self.status != 200:
            return web.json_response({"error": HOSTILE}, status=self.status)
        return web.json_response([taken or self.answers_true] * self.ranks)
