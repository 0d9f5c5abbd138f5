"""A load: what is under way, what is measured, how it ends, whatever the server does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from exporter.load.answer import Api
from exporter.load.driver import Load
from exporter.load.failures import FailureKind
from exporter.load.plan import LoadPlan, PlanError
from exporter.load.prompts import SPANS
from exporter.load.report import load_lines
from exporter.load.result import EndReason, LoadProgress, LoadResult, LoadStage
from exporter.load.sweep import Sweep
from exporter.load.target import Target
from exporter.records import LoadEvent, LoadPhase, Record, ThroughputReference
from tests.streaming_server import HOSTILE, Misbehavior, StreamingServer

PLAN = LoadPlan(
    concurrency=3,
    prompt_tokens=16,
    output_tokens=8,
    warmup_seconds=0.0,
    duration_seconds=60.0,
    requests=9,
    seed=5,
)
APIS = pytest.mark.parametrize("api", list(Api), ids=[api.name for api in Api])


def target(server: StreamingServer, api: Api = Api.COMPLETIONS) -> Target:
    return Target(server.url, None, api, "kimi", None if api is Api.CHAT else SPANS[0])


async def until(holds: Callable[[], object]) -> None:
    """Waits until something holds on the client's side."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110  # no event tells
            await asyncio.sleep(0.001)


class Pauses:
    """Pauses after failures end at once; how long they would have been is written down."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await asyncio.sleep(0)


async def drive(
    server: StreamingServer, plan: LoadPlan = PLAN, **options: Any
) -> tuple[LoadResult, list[Record]]:
    records: list[Record] = []
    api = options.pop("api", Api.COMPLETIONS)
    options.setdefault("sleep", Pauses())
    load = Load(target(server, api), plan, emit=records.append, **options)
    async with asyncio.timeout(60):
        return await load.run(), records


@APIS
async def test_every_token_of_every_request_is_counted(api: Api) -> None:
    async with StreamingServer() as server:
        result, _ = await drive(server, api=api)
    assert (result.ended_by, result.completed, result.short) == (EndReason.REQUESTS, 9, 0)
    assert result.measurements.output_tokens == server.tokens_sent == 9 * 8
    assert not result.errors
    latencies = result.latencies
    assert latencies.time_to_first_token is not None
    assert latencies.end_to_end is not None
    assert latencies.time_to_first_token.count == latencies.end_to_end.count == 9


@APIS
async def test_tokens_that_come_together_are_counted_one_by_one(api: Api) -> None:
    async with StreamingServer(tokens_an_event=3) as server:
        result, _ = await drive(server, api=api)
    assert result.measurements.output_tokens == 9 * 8


async def test_without_counts_in_the_stream_the_last_one_corrects_the_number_of_events() -> None:
    async with StreamingServer(tokens_an_event=3, usage=False) as server:
        result, _ = await drive(server)
    assert result.measurements.output_tokens == 9 * 8


async def test_as_many_requests_are_under_way_as_asked_for_and_no_more() -> None:
    async with StreamingServer() as server:
        server.pace.clear()
        driving = asyncio.create_task(drive(server))
        await server.streams(3)
        server.pace.set()
        await driving
    assert server.most_at_once == 3


async def test_the_output_length_is_fixed_whatever_the_model_wants_to_say() -> None:
    async with StreamingServer() as server:
        await drive(server)
        await drive(server, api=Api.NATIVE)
    openai, native = server.bodies[0], server.bodies[-1]
    assert (openai["max_tokens"], openai["ignore_eos"], openai["stream"]) == (8, True, True)
    assert native["sampling_params"]["max_new_tokens"] == 8
    assert native["sampling_params"]["ignore_eos"] is True


async def test_prompts_share_no_prefix_and_the_same_seed_gives_the_same_rest() -> None:
    async with StreamingServer() as server:
        await drive(server)
        await drive(server)
    heads = {tuple(prompt[:4]) for prompt in server.prompts}
    assert len(heads) == 18
    assert {len(prompt) for prompt in server.prompts} == {16}
    rests = [tuple(prompt[8:]) for prompt in server.prompts]
    assert sorted(rests[:9]) == sorted(rests[9:])


async def test_the_records_say_when_the_measurement_was_and_what_it_gave() -> None:
    async with StreamingServer() as server:
        result, records = await drive(server)
    start, end = records
    assert isinstance(start, LoadEvent)
    assert isinstance(end, LoadEvent)
    assert (start.phase, start.concurrency) == (LoadPhase.START, 3)
    assert (end.phase, end.concurrency, end.errors) == (LoadPhase.END, 3, 0)
    assert (start.happened_at, end.happened_at) == (result.started_at, result.ended_at)
    assert end.seconds == result.seconds
    assert end.output_tokens == result.output_tokens


async def test_a_single_stream_gives_a_reference() -> None:
    async with StreamingServer() as server:
        result, records = await drive(server, replace(PLAN, concurrency=1))
    assert records[-1] == ThroughputReference(1, result.output_tokens_per_second or 0.0)


async def test_the_warm_up_is_driven_but_not_measured() -> None:
    async with StreamingServer() as server:
        result, records = await drive(server, replace(PLAN, warmup_seconds=0.5))
    assert len(server.prompts) > 9
    assert result.output_tokens is not None
    assert result.output_tokens < server.tokens_sent
    assert len(records) == 2


async def test_a_load_ends_with_its_time_and_cuts_off_what_is_under_way() -> None:
    async with StreamingServer() as server:
        server.always = Misbehavior(tokens=2, hangs=True)
        plan = replace(PLAN, requests=None, duration_seconds=0.1)
        result, records = await drive(server, plan)
        await server.idle()
    assert result.ended_by is EndReason.DURATION
    assert result.completed == 0
    assert not result.errors
    assert isinstance(records[-1], LoadEvent)


async def test_a_first_token_counts_even_if_its_request_does_not_end() -> None:
    async with StreamingServer() as server:
        server.always = Misbehavior(tokens=2, hangs=True)
        load = Load(target(server), replace(PLAN, requests=None))
        driving = asyncio.create_task(load.run())
        await until(lambda: load.result().measurements.output_tokens >= 6)
        load.stop()
        result = await driving
    assert result.latencies.time_to_first_token is not None
    assert result.latencies.time_to_first_token.count == 3
    assert result.latencies.end_to_end is None


async def test_stopped_it_keeps_what_it_measured() -> None:
    records: list[Record] = []
    async with StreamingServer() as server:
        load = Load(target(server), replace(PLAN, requests=None), emit=records.append)
        driving = asyncio.create_task(load.run())
        await until(lambda: load.result().completed >= 4)
        load.stop()
        async with asyncio.timeout(60):
            result = await driving
        await server.idle()
    assert result.ended_by is EndReason.STOPPED
    assert result.completed >= 4
    assert result.output_tokens_per_second is not None
    assert isinstance(records[-1], LoadEvent)
    assert records[-1].phase is LoadPhase.END
    assert "stopped by a signal" in [line.strip() for line in load_lines([result])]


async def test_canceled_it_ends_its_records_and_keeps_what_it_measured() -> None:
    records: list[Record] = []
    async with StreamingServer() as server:
        load = Load(target(server), replace(PLAN, requests=None), emit=records.append)
        driving = asyncio.create_task(load.run())
        await until(lambda: load.result().completed >= 4)
        driving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await driving
        await server.idle()
    assert load.result().ended_by is EndReason.STOPPED
    assert load.result().completed >= 4
    assert [r.phase for r in records if isinstance(r, LoadEvent)] == list(LoadPhase)


async def test_stopped_while_warming_up_nothing_counts_as_measured() -> None:
    async with StreamingServer() as server:
        server.pace.clear()
        load = Load(target(server), replace(PLAN, warmup_seconds=60.0), sleep=Pauses())
        driving = asyncio.create_task(load.run())
        await server.streams(1)
        load.stop()
        result = await driving
    assert result.output_tokens is None
    assert result.seconds is None
    assert result.output_tokens_per_second is None
    assert any("before the warm-up was over" in line for line in load_lines([result]))


# --- a server that misbehaves ------------------------------------------------------------------

EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'
TROUBLES = {
    "wrong_key": (Misbehavior(status=401), FailureKind.NOT_ALLOWED),
    "too_many_requests": (Misbehavior(status=429), FailureKind.OVERLOADED),
    "unavailable": (Misbehavior(status=503), FailureKind.OVERLOADED),
    "bad_request": (Misbehavior(status=400), FailureKind.REJECTED),
    "server_error": (Misbehavior(status=500), FailureKind.SERVER_ERROR),
    "redirect": (Misbehavior(status=302), FailureKind.REJECTED),
    "dies_mid_stream": (Misbehavior(tokens=3, dies=True), FailureKind.BROKEN_OFF),
    "ends_without_an_end": (Misbehavior(tokens=3), FailureKind.BROKEN_OFF),
    "web_page": (
        Misbehavior(content_type="text/html", body=b"<p>" + HOSTILE.encode()),
        FailureKind.UNUSABLE,
    ),
    "encoded": (
        Misbehavior(headers={"Content-Encoding": "br"}, body=EVENT),
        FailureKind.UNUSABLE,
    ),
    "no_json": (Misbehavior(body=b"data: \xff\xfe\x00{\n\n"), FailureKind.UNUSABLE),
    "deep_json": (Misbehavior(body=b"data: " + b"[" * 60_000 + b"\n\n"), FailureKind.UNUSABLE),
    "huge_number": (
        Misbehavior(
            body=b'data: {"choices": [], "usage": {"completion_tokens": 1' + b"0" * 5000 + b"}}\n"
        ),
        FailureKind.UNUSABLE,
    ),
    "more_tokens_than_asked": (
        Misbehavior(body=b'data: {"choices": [], "usage": {"completion_tokens": 9}}\n\n'),
        FailureKind.UNUSABLE,
    ),
    "negative_tokens": (
        Misbehavior(body=b'data: {"choices": [], "usage": {"completion_tokens": -1}}\n\n'),
        FailureKind.UNUSABLE,
    ),
    "enormous_line": (Misbehavior(body=b"data: " + b"x" * (1 << 20)), FailureKind.UNUSABLE),
    "enormous_number_of_lines": (Misbehavior(body=b":\n" * 20_000), FailureKind.UNUSABLE),
    "end_without_a_token": (Misbehavior(body=b"data: [DONE]\n\n"), FailureKind.UNUSABLE),
    "queue_full_in_the_stream": (
        Misbehavior(body=b'data: {"error": {"code": 503, "message": "full"}}\n\n'),
        FailureKind.OVERLOADED,
    ),
    "error_in_the_stream": (
        Misbehavior(body=b'data: {"error": "x"}\n\n'),
        FailureKind.SERVER_ERROR,
    ),
    "aborted": (
        Misbehavior(body=b'data: {"choices": [{"text": "", "finish_reason": "abort"}]}\n\n'),
        FailureKind.ABORTED,
    ),
}


@pytest.mark.parametrize(("trouble", "kind"), TROUBLES.values(), ids=TROUBLES)
async def test_a_single_failure_is_counted_by_its_kind_and_the_load_goes_on(
    trouble: Misbehavior, kind: FailureKind, caplog: pytest.LogCaptureFixture
) -> None:
    async with StreamingServer() as server:
        server.next.append(trouble)
        result, records = await drive(server)
    assert result.ended_by is EndReason.REQUESTS
    assert result.errors == {kind: 1}
    assert result.completed == 9
    assert HOSTILE not in repr((result, records)) + caplog.text


async def test_an_abort_of_the_native_endpoint_is_told_by_its_status() -> None:
    facts = b'{"completion_tokens": 0, "finish_reason": {"type": "abort", "status_code": 503}}'
    async with StreamingServer() as server:
        server.next.append(Misbehavior(body=b'data: {"text": "", "meta_info": ' + facts + b"}\n\n"))
        result, _ = await drive(server, api=Api.NATIVE)
    assert result.errors == {FailureKind.OVERLOADED: 1}


async def test_comments_that_keep_a_connection_alive_are_no_failure() -> None:
    body = b": ping\n\n" + EVENT + b"event: x\r\ndata: [DONE]\r\n\r\n"
    async with StreamingServer() as server:
        server.next.append(Misbehavior(body=body))
        result, _ = await drive(server)
    assert not result.errors
    assert result.short == 1


async def test_a_request_that_hangs_fails_after_its_time() -> None:
    async with StreamingServer() as server:
        server.next.append(Misbehavior(hangs=True))
        result, _ = await drive(server, replace(PLAN, request_seconds=0.2))
    assert result.errors[FailureKind.TIME_OUT] == 1


async def test_a_busy_server_is_given_the_pause_it_asks_for() -> None:
    pauses = Pauses()
    async with StreamingServer() as server:
        server.next.append(Misbehavior(status=429, headers={"Retry-After": "7"}))
        server.next.append(Misbehavior(status=503, headers={"Retry-After": "86400"}))
        server.next.append(Misbehavior(status=503, headers={"Retry-After": "\u0667 soon"}))
        result, _ = await drive(server, sleep=pauses)
    assert result.errors == {FailureKind.OVERLOADED: 3}
    assert {7.0, 60.0} < set(pauses.seconds)
    assert len(pauses.seconds) == 3


async def test_pauses_grow_while_failures_go_on() -> None:
    pauses = Pauses()
    async with StreamingServer() as server:
        server.next += [Misbehavior(status=500)] * 4
        await drive(server, replace(PLAN, concurrency=1), sleep=pauses)
    assert pauses.seconds == sorted(pauses.seconds)
    assert len(pauses.seconds) == 4


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (Misbehavior(status=401), FailureKind.NOT_ALLOWED),
        (Misbehavior(status=400), FailureKind.REJECTED),
        (Misbehavior(status=503), FailureKind.OVERLOADED),
        (Misbehavior(tokens=1, dies=True), FailureKind.BROKEN_OFF),
    ],
    ids=["wrong_key", "refused", "busy", "dying"],
)
@pytest.mark.parametrize("requests", [None, 3], ids=["for_a_time", "for_a_number"])
async def test_a_load_of_failures_alone_ends_itself(
    trouble: Misbehavior, kind: FailureKind, requests: int | None
) -> None:
    async with StreamingServer() as server:
        server.always = trouble
        result, records = await drive(server, replace(PLAN, requests=requests))
    assert result.ended_by is EndReason.ALL_FAILED
    assert set(result.errors) == {kind}
    assert isinstance(records[-1], LoadEvent)
    assert records[-1].errors == sum(result.errors.values())


async def test_a_server_that_goes_away_ends_the_load_and_what_it_gave_stays() -> None:
    async with StreamingServer() as server:
        load = Load(target(server), replace(PLAN, requests=None), sleep=Pauses())
        driving = asyncio.create_task(load.run())
        await until(lambda: load.result().completed >= 4)
        await server.stop()
        async with asyncio.timeout(60):
            result = await driving
    assert result.ended_by is EndReason.ALL_FAILED
    assert result.completed >= 4
    assert result.errors[FailureKind.CONNECTION_REFUSED] > 0
    assert any("nothing but failures came" in line for line in load_lines([result]))


async def test_random_bytes_from_the_server_never_end_the_load_otherwise() -> None:
    rng = random.Random(11)
    async with StreamingServer() as server:
        for _ in range(60):
            body = b"".join(
                rng.choices((b"data:", b"\n", b"\r", b"{", b'"', b"[]", b"\0", b"1"), k=30)
            )
            server.next.append(Misbehavior(tokens=rng.randrange(3), body=body))
        result, _ = await drive(server, replace(PLAN, concurrency=40, requests=100))
    assert result.ended_by is EndReason.REQUESTS
    assert result.completed == 100
    assert sum(result.errors.values()) == 60


# --- rate, progress, sweep, plan ---------------------------------------------------------------


async def test_at_a_rate_requests_wait_only_where_too_many_are_under_way() -> None:
    async with StreamingServer() as server:
        server.pace.clear()
        plan = replace(PLAN, rate_per_second=500.0)
        driving = asyncio.create_task(drive(server, plan))
        await server.streams(3)
        await asyncio.sleep(0.05)
        server.pace.set()
        result, records = await driving
    assert result.completed == 9
    assert server.most_at_once == 3
    assert result.delayed_arrivals > 0
    assert isinstance(records[0], LoadEvent)
    assert records[0].concurrency is None


async def test_progress_tells_stage_requests_and_errors() -> None:
    seen: list[LoadProgress] = []
    async with StreamingServer() as server:
        server.next.append(Misbehavior(status=500))
        server.pace.clear()
        load = Load(target(server), PLAN, on_progress=seen.append, sleep=Pauses())
        driving = asyncio.create_task(load.run())
        await until(lambda: seen and seen[-1].errors)
        server.pace.set()
        await driving
    assert seen[-1].stage is LoadStage.MEASURING
    assert seen[-1].running == 3
    assert seen[-1].planned_requests == 9
    assert seen[-1].errors == {FailureKind.SERVER_ERROR: 1}
    assert seen[0].tokens_per_second is None


async def test_what_breaks_inside_is_raised_and_not_swallowed() -> None:
    def broken(_: LoadProgress) -> None:
        raise ZeroDivisionError

    async with StreamingServer() as server:
        with pytest.raises(ZeroDivisionError):
            await drive(server, on_progress=broken)


async def test_a_sweep_gives_its_points_and_a_reference() -> None:
    records: list[Record] = []
    async with StreamingServer() as server:
        sweep = Sweep(target(server), PLAN, [1, 2, 12], emit=records.append)
        result = await sweep.run()
    assert [point.plan.concurrency for point in result.points] == [1, 2, 12]
    assert [point.completed for point in result.points] == [9, 9, 12]
    single = result.single_stream_tokens_per_second
    assert ThroughputReference(1, single or 0.0) in records


async def test_a_stopped_sweep_keeps_its_points() -> None:
    async with StreamingServer() as server:
        server.pace.clear()
        plan = replace(PLAN, requests=None, duration_seconds=60.0)
        sweep = Sweep(target(server), plan, [2, 4])
        driving = asyncio.create_task(sweep.run())
        await server.streams(2)
        sweep.stop()
        async with asyncio.timeout(60):
            result = await driving
    assert [point.ended_by for point in result.points] == [EndReason.STOPPED]


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"concurrency": 5000},
        {"prompt_tokens": 0},
        {"output_tokens": 1 << 20},
        {"duration_seconds": float("nan")},
        {"duration_seconds": float("inf")},
        {"duration_seconds": None, "requests": None},
        {"requests": 2},
        {"requests": 10**9},
        {"rate_per_second": 0.0},
        {"warmup_seconds": -1.0},
    ],
    ids=str,
)
def test_a_load_out_of_bounds_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="cannot drive"):
        replace(PLAN, **wrong)


def test_a_sweep_without_points_is_refused() -> None:
    with pytest.raises(PlanError):
        Sweep(Target("http://127.0.0.1:1", None, Api.NATIVE), PLAN, [])
