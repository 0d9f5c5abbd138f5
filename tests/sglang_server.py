"""SGLang's HTTP API as several versions answer it, on loopback, misbehaving on request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from typing import Any

from aiohttp import web

API_KEY = "sk-hidden-4711"


def answer(**changed: Any) -> dict[str, Any]:
    """What `/server_info` of 0.5.23 answers, shortened: names, order and nesting are its own."""
    arguments = {
        "model_path": "/models/kimi",
        "tokenizer_path": "/models/kimi",
        "api_key": API_KEY,
        "admin_api_key": None,
        "host": "0.0.0.0",  # noqa: S104  # only reported
        "port": 30000,
        "served_model_name": "kimi",
        "pp_size": 8,
        "tp_size": 1,
        "dp_size": 1,
        "nnodes": 1,
        "node_rank": 0,
        "base_gpu_id": 0,
        "gpu_id_step": 1,
        "pp_async_batch_depth": 2,
        "pp_max_micro_batch_size": None,
        "max_running_requests": 256,
        "decode_log_interval": 41,
        "mem_fraction_static": 0.87,
        "cuda_graph_bs": [1, 2, 4],
        "enable_metrics": False,
    }
    arguments |= changed
    state = {
        **arguments,
        "pp_max_micro_batch_size": 6,
        "last_gen_throughput": 248.1,
        "memory_usage": {"weight": 73.2, "kvcache": 9.1, "token_capacity": 20480, "graph": 0.0},
        "effective_max_running_requests_per_dp": 48,
    }
    return {
        **arguments,
        "status": "ready",
        "max_total_num_tokens": 20480,
        "max_req_input_len": 131066,
        "internal_states": [state],
        "version": "0.5.23",
        "launch_command": f"sglang serve --api-key {API_KEY}",
    }


class SglangServer:
    """One server; it can be started, stopped, and started anew on the same port.

    Attributes:
        asked: Path of each request it saw, in order.
        warnings: What a call printed into its log beyond the access line.
    """

    def __init__(
        self, *, version: tuple[int, ...] = (0, 5, 23), key: str | None = None, body: Any = None
    ) -> None:
        self.version = version
        self.key = key
        self.body = answer() if body is None else body
        self.status = 200
        self.headers: dict[str, str] = {}
        self.hang = False
        self.reset = False
        self.port = 0
        self.asked: list[str] = []
        self.tokens: list[str | None] = []
        self.warnings: list[str] = []
        self.most_at_once = 0
        self.arrived = asyncio.Event()
        self._at_once = 0
        self._runner: web.AppRunner | None = None

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, shutdown_timeout=0.01, handler_cancellation=True, access_log=None
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _knows(self, path: str) -> bool:
        return path == "/get_server_info" or (path == "/server_info" and self.version >= (0, 5, 6))

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            return await self._respond(request)
        finally:
            self._at_once -= 1

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        self.tokens.append(request.headers.get("Authorization"))
        self.arrived.set()
        if self.reset:
            assert request.transport is not None
            request.transport.abort()
        if self.hang:
            await asyncio.Event().wait()
        if self.key is not None and self.tokens[-1] != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if not self._knows(request.path):
            return web.json_response({"detail": "Not Found"}, status=404)
        if request.path == "/get_server_info" and self.version >= (0, 5, 6):
            self.warnings.append("Endpoint '/get_server_info' is deprecated")
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        return web.Response(
            body=body, status=self.status, headers=self.headers, content_type="application/json"
        )


class RawServer:
    """Sends the same bytes to whoever connects, whatever they ask, then hangs up."""

    def __init__(self, reply: bytes) -> None:
        self.connections = 0
        self._reply = reply
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._reply)
            await writer.drain()
        writer.close()
