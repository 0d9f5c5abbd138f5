"""How a server is spoken to, and what is said when it cannot be."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from exporter.load.answer import Api
from exporter.load.detection import NoTargetError, check_fits, find_target
from exporter.load.failures import LoadError
from exporter.load.plan import LoadPlan, PlanError
from exporter.load.prompts import SPANS, TokenIds
from exporter.load.target import Target
from exporter.load.tokens import API_KEY_VARIABLE, find_token
from tests.sglang_server import RawServer
from tests.streaming_server import CHAT, COMPLETIONS, HOSTILE, NATIVE, Misbehavior, StreamingServer

KEY = "sk-hidden-4711"


async def refusal(url: str, token: str | None = None, **options: Any) -> str:
    with pytest.raises(NoTargetError) as error:
        await find_target(url, token, **options)
    return str(error.value)


async def test_completions_with_token_ids_are_the_first_choice() -> None:
    async with StreamingServer() as server:
        found = await find_target(server.url + "/")
    assert (found.api, found.model, found.token_ids) == (Api.COMPLETIONS, "kimi", SPANS[0])
    assert found.context_tokens == 8192
    assert found.address == server.url + "/v1/completions"
    assert len(server.prompts) == 1


@pytest.mark.parametrize("vocabulary", [1024, 999, 997])
async def test_a_small_vocabulary_gets_small_token_ids(vocabulary: int) -> None:
    async with StreamingServer(vocabulary=vocabulary) as server:
        found = await find_target(server.url)
    assert found.token_ids == TokenIds(256, min(vocabulary, 1000))
    assert not server.crashed


@pytest.mark.parametrize("vocabulary", [None, 64], ids=["not_told", "tiny"])
@pytest.mark.parametrize("api", [COMPLETIONS, NATIVE])
async def test_token_ids_that_the_server_does_not_vouch_for_are_never_sent(
    api: str, vocabulary: int | None
) -> None:
    async with StreamingServer(vocabulary=vocabulary, apis=(api,)) as server:
        found = await find_target(server.url)
    assert found.token_ids is None
    assert not server.crashed
    assert len(server.prompts[-1].split()) == 16


async def test_without_completions_the_native_endpoint_is_taken() -> None:
    async with StreamingServer(apis=(NATIVE, CHAT)) as server:
        found = await find_target(server.url)
    assert found.api is Api.NATIVE


async def test_a_server_that_names_no_model_is_asked_by_its_native_endpoint() -> None:
    async with StreamingServer(model=None) as server:
        found = await find_target(server.url)
    assert (found.api, found.model) == (Api.NATIVE, None)


async def test_a_gateway_that_only_chats_gets_words() -> None:
    async with StreamingServer(apis=(CHAT,)) as server:
        found = await find_target(server.url)
    assert (found.api, found.token_ids) == (Api.CHAT, None)
    assert len(server.prompts[-1][0]["content"].split()) == 16


async def test_a_model_may_be_chosen() -> None:
    async with StreamingServer() as server:
        found = await find_target(server.url, model="kimi:adapter")
    assert server.bodies[-1]["model"] == found.model == "kimi:adapter"


async def test_a_server_that_is_busy_now_is_found_all_the_same() -> None:
    async with StreamingServer() as server:
        server.always = Misbehavior(status=503)
        found = await find_target(server.url)
    assert found.api is Api.COMPLETIONS


async def test_the_key_goes_along_and_is_never_shown() -> None:
    async with StreamingServer(key=KEY) as server:
        found = await find_target(server.url, KEY)
        assert "API key" in await refusal(server.url)
        assert KEY not in await refusal(server.url, KEY + "x")
    assert KEY not in repr(found)
    assert server.tokens[0] == f"Bearer {KEY}"


async def test_nobody_there_is_said_so() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert "connection refused" in await refusal(f"http://127.0.0.1:{port}")


async def test_a_server_that_never_ends_an_answer_is_said_so() -> None:
    async with StreamingServer() as server:
        server.always = Misbehavior(tokens=1, hangs=True)
        said = await refusal(server.url, trial_seconds=0.5)
    assert "not answered within 0.5 s; is the server hung" in said


@pytest.mark.parametrize("apis", [(COMPLETIONS, NATIVE, CHAT), (COMPLETIONS,)])
async def test_a_server_that_breaks_off_its_answers_is_said_so(apis: tuple[str, ...]) -> None:
    async with StreamingServer(apis=apis) as server:
        server.always = Misbehavior(tokens=1, dies=True)
        said = await refusal(server.url)
    assert "breaks off its answers" in said


async def test_a_server_that_streams_nothing_is_said_so() -> None:
    async with StreamingServer(apis=()) as server:
        said = await refusal(server.url)
    assert server.url in said
    assert HOSTILE not in said


async def test_a_server_that_hangs_is_said_so() -> None:
    async with StreamingServer() as server:
        server.always = Misbehavior(hangs=True)
        assert "hung" in await refusal(server.url, trial_seconds=0.2)


@pytest.mark.parametrize(
    "reply",
    [
        b"\x16\x03\x01 no http at all \xff\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n" + b"[" * 9,
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<p>\xff",
        b'HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{"data": [{"id": 1}]}\n',
    ],
    ids=["no_http", "deep", "web_page", "other_json"],
)
async def test_what_is_no_sglang_server_is_told_without_its_words(reply: bytes) -> None:
    async with RawServer(reply) as url, asyncio.timeout(60):
        said = await refusal(url)
    assert said.startswith("cannot ")
    assert "no http at all" not in said


def test_prompt_and_output_must_fit_into_the_context() -> None:
    small = Target("http://127.0.0.1:1", None, Api.NATIVE, context_tokens=1024)
    plan = LoadPlan(prompt_tokens=512, output_tokens=512)
    with pytest.raises(PlanError, match="context of 1024"):
        check_fits(small, plan)
    check_fits(Target("http://127.0.0.1:1", None, Api.NATIVE), plan)


def test_a_key_comes_from_a_file_or_else_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(KEY + "\n")
    assert find_token(file, {API_KEY_VARIABLE: "other"}) == KEY
    assert find_token(None, {API_KEY_VARIABLE: f" {KEY}\n"}) == KEY
    assert find_token(None, {}) is None
    assert find_token(None, {API_KEY_VARIABLE: ""}) is None


@pytest.mark.parametrize("content", [f"{KEY}\r\nX-Other: 1", "k\u00e9y"], ids=["header", "letters"])
def test_a_key_that_could_break_a_header_is_refused_without_showing_it(
    content: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    for given in ((file, {}), (None, {API_KEY_VARIABLE: content})):
        with pytest.raises(LoadError) as error:
            find_token(*given)
        assert KEY not in str(error.value)
        assert "k\u00e9y" not in str(error.value)
