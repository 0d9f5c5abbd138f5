"""A cap on micro-batches for a while: the old one comes back whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from exporter.load.live_setting import CapChange, NotRestoredError, micro_batch_cap
from exporter.load.micro_batch_cap import CapControl, CapUnknownError, SettingRefusedError
from tests.streaming_server import HOSTILE, StreamingServer

KEY, ADMIN_KEY = "sk-hidden-4711", "sk-admin-0815"


async def no_pause(_seconds: float) -> None:
    await asyncio.sleep(0)


def server_with(**cap: Any) -> StreamingServer:
    return StreamingServer(cap=cap)


async def test_the_cap_holds_in_the_block_and_the_old_one_comes_back() -> None:
    async with server_with(value=32) as server:
        async with micro_batch_cap(CapControl(server.url), 4) as change:
            assert change == CapChange("pp_max_micro_batch_size", 32, 4)
            assert server.cap.value == 4
        assert server.cap.value == 32
    assert server.cap.history == [4, 32]


async def test_releases_before_0_5_3_post1_know_it_by_another_name_and_answer_500() -> None:
    async with server_with(name="max_micro_batch_size", status=500) as server:
        async with micro_batch_cap(CapControl(server.url), 4) as change:
            assert change.name == "max_micro_batch_size"
        assert server.cap.value == 32


async def test_an_error_in_the_block_restores_and_is_raised() -> None:
    async with server_with() as server:
        with pytest.raises(ZeroDivisionError):
            async with micro_batch_cap(CapControl(server.url), 4):
                raise ZeroDivisionError
        assert server.cap.value == 32


async def test_a_cancellation_restores_even_if_it_is_repeated() -> None:
    entered = asyncio.Event()

    async def hold(url: str) -> None:
        async with micro_batch_cap(CapControl(url), 4, sleep=no_pause):
            entered.set()
            await asyncio.Event().wait()

    async with server_with() as server:
        holding = asyncio.create_task(hold(server.url))
        await entered.wait()
        server.cap.down = 3
        for _ in range(20):
            holding.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await holding
        assert server.cap.value == 32


async def test_a_change_that_is_cut_off_before_its_answer_is_put_back() -> None:
    async def change(url: str) -> None:
        async with micro_batch_cap(CapControl(url), 4):
            pytest.fail("the block was entered")

    async with server_with() as server:
        server.cap.gates[4] = asyncio.Event()
        changing = asyncio.create_task(change(server.url))
        await server.cap.becomes(4)
        changing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await changing
        assert server.cap.value == 32


async def test_a_server_that_is_away_for_a_moment_gets_its_old_cap_back() -> None:
    async with server_with() as server:
        async with micro_batch_cap(CapControl(server.url), 4, sleep=no_pause):
            server.cap.down = 4
        assert server.cap.value == 32


async def test_a_server_that_keeps_the_new_cap_is_named_with_the_command_to_set_it() -> None:
    async with server_with() as server:
        with pytest.raises(NotRestoredError) as error:
            async with micro_batch_cap(CapControl(server.url, KEY), 4, sleep=no_pause):
                server.cap.stuck = True
    said = str(error.value)
    assert "curl -X POST" in said
    assert '{"server_args": {"pp_max_micro_batch_size": 32}}' in said
    assert '"Authorization: Bearer $SGLANG_API_KEY"' in said
    assert KEY not in said


async def test_a_dead_server_is_not_waited_for_without_end() -> None:
    async with server_with() as server:
        with pytest.raises(NotRestoredError, match="its own value again"):
            async with micro_batch_cap(CapControl(server.url), 4, sleep=no_pause):
                await server.stop()


# --- refusals ----------------------------------------------------------------------------------


async def refused(server: StreamingServer, new: int, **keys: Any) -> str:
    with pytest.raises(SettingRefusedError) as error:
        async with micro_batch_cap(CapControl(server.url, **keys), new, sleep=no_pause):
            pytest.fail("the block was entered")
    assert server.cap.value == 32
    assert HOSTILE not in str(error.value)
    return str(error.value)


async def test_a_cap_that_is_set_already_is_no_change() -> None:
    async with server_with() as server:
        assert "what the server has now" in await refused(server, 32)
    assert server.cap.history == []


@pytest.mark.parametrize("new", [0, 33])
async def test_a_cap_out_of_the_server_s_bounds_is_not_even_asked_for(new: int) -> None:
    async with server_with() as server:
        assert "1 to 32" in await refused(server, new)
    assert server.cap.history == []


async def test_a_cap_that_could_not_be_put_back_is_not_changed() -> None:
    """At the start a server takes a larger one than it accepts later."""
    async with server_with(value=32, most=8) as server:
        assert "restart it with --pp-max-micro-batch-size 4" in await refused(server, 4)


@pytest.mark.parametrize("answers_true", [True, False], ids=["it_says_yes", "it_says_no"])
async def test_whether_it_was_set_is_read_and_not_believed(answers_true: bool) -> None:
    async with server_with(answers_true=answers_true) as server:
        server.cap.stuck = True
        assert "left it at 32" in await refused(server, 4)


async def test_the_key_for_live_settings_may_be_another() -> None:
    async with StreamingServer(key=KEY, admin_key=ADMIN_KEY) as server:
        said = await refused(server, 4, token=KEY)
        assert "--admin-api-key" in said
        assert KEY not in said
        control = CapControl(server.url, KEY, ADMIN_KEY)
        async with micro_batch_cap(control, 4):
            assert server.cap.value == 4
        assert server.cap.value == 32
    assert KEY not in repr(control)
    assert ADMIN_KEY not in repr(control)


@pytest.mark.parametrize("facts", [{"value": None}, {"value": "32"}, {"ranks": 0}], ids=str)
async def test_a_cap_that_is_not_known_is_not_changed(facts: dict[str, Any]) -> None:
    async with server_with(**facts) as server:
        with pytest.raises(CapUnknownError):
            async with micro_batch_cap(CapControl(server.url), 4):
                pytest.fail("the block was entered")
    assert server.cap.history == []
