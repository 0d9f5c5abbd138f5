"""Folding records into stages and GPUs, and what a snapshot shows of them."""

from dataclasses import replace

import pytest

from exporter.pipeline.figures import StageState
from exporter.pipeline.server_facts import local_pp_ranks
from exporter.pipeline_model import PipelineModel
from exporter.records import (
    ActivityLevel,
    Batch,
    EventKind,
    GpmWindow,
    GpuGauges,
    GpuIdentity,
    GpuLevels,
    GpuProcess,
    GpuProcesses,
    GpuState,
    Method,
    Mode,
    Refusal,
    RefusedLine,
    RingSamples,
    ServerEvent,
    ServerFacts,
    Signal,
    StageGpu,
    StageMap,
    XidError,
)
from exporter.sglang.launch_state import MAX_STAGES
from exporter.snapshot import GpuSnapshot, Snapshot, StageSnapshot

T = 1_796_000_000.0


def decode(at: float = T, pp: int = 0, running: int = 4, **fields: object) -> Batch:
    batch = Batch(
        server="kimi",
        logged_at=at,
        mode=Mode.DECODE,
        dp_rank=0,
        pp_rank=pp,
        tp_rank=0,
        pid=4000 + pp,
        running_reqs=running,
        queued_reqs=0,
        token_usage_ratios={"kv": 0.25},
        gen_throughput_tokens_per_second=870.0,
        verified=True,
    )
    return batch._replace(**fields)


def prefill(at: float = T, pp: int = 0, new_seqs: int = 2) -> Batch:
    return decode(at, pp)._replace(
        mode=Mode.PREFILL,
        running_reqs=3,
        new_seqs=new_seqs,
        new_tokens=512,
        cached_tokens=64,
        gen_throughput_tokens_per_second=None,
    )


def facts(new_launch: bool = False, **values: int | str) -> ServerFacts:
    return ServerFacts("kimi", T, values, "server_args", new_launch)


def fold(*records: object) -> PipelineModel:
    model = PipelineModel()
    for record in records:
        model.fold(record)  # type: ignore[arg-type]
    return model


def stage(snapshot: Snapshot, pp: int = 0) -> StageSnapshot:
    return next(s for s in snapshot.servers[0].stages if s.pp_rank == pp)


def gpu(snapshot: Snapshot, index: int = 0) -> GpuSnapshot:
    return next(g for g in snapshot.gpus if g.gpu == index)


def ring(index: int, first: int, share: float, count: int = 5) -> RingSamples:
    """`count` samples of 200 ms from the epoch second `first` on."""
    samples = tuple((first + 0.2 * (i + 1), share) for i in range(count))
    return RingSamples(index, Signal.UTILIZATION, 0.2, samples)


def power(index: int, first: int, watts: float) -> RingSamples:
    """The power samples of the epoch second `first`."""
    samples = tuple((first + 0.02 * (i + 1), watts) for i in range(50))
    return RingSamples(index, Signal.POWER, 0.02, samples)


class TestStagesFromTheLog:
    def test_a_decode_line_sets_the_gauges_of_its_stage_alone(self) -> None:
        snapshot = fold(facts(pp_size=2), decode(pp=1, running=7)).snapshot(T + 1)
        assert stage(snapshot, 1).running_reqs == 7
        assert stage(snapshot, 1).token_usage_ratios == {"kv": 0.25}
        assert stage(snapshot, 1).generation_tokens_per_second == 870.0
        assert stage(snapshot, 0).running_reqs is None

    def test_known_stages_are_there_with_counters_at_zero_before_their_first_line(self) -> None:
        snapshot = fold(facts(pp_size=8)).snapshot(T)
        assert [s.pp_rank for s in snapshot.servers[0].stages] == list(range(8))
        assert all(m.batches == 0 for s in snapshot.servers[0].stages for m in s.modes)
        assert stage(snapshot, 3).running_reqs is None

    def test_batch_sizes_go_to_the_bucket_that_includes_them(self) -> None:
        model = fold(*(decode(running=n) for n in (0, 1, 2, 3, 64, 65)))
        counts = stage(model.snapshot(T)).modes[0]
        assert counts.bucket_counts == (2, 1, 1, 0, 0, 0, 1, 1)
        assert counts.size_sum == 135

    def test_the_size_of_a_prefill_batch_is_its_new_requests(self) -> None:
        snapshot = fold(decode(), prefill(new_seqs=2)).snapshot(T)
        sizes = {m.mode: m.batch_size for m in stage(snapshot).modes}
        assert sizes == {Mode.DECODE: 4, Mode.PREFILL: 2}
        assert stage(snapshot).running_reqs == 3
        assert (stage(snapshot).computed_tokens, stage(snapshot).cached_tokens) == (512, 64)

    def test_graph_batches_appear_with_the_first_line_that_prints_the_flag(self) -> None:
        model = fold(decode())
        assert stage(model.snapshot(T)).modes[0].graph_batches is None
        model.fold(decode(graph=False))
        assert stage(model.snapshot(T)).modes[0].graph_batches == 0
        model.fold(decode(graph=True))
        assert stage(model.snapshot(T)).modes[0].graph_batches == 1

    def test_gauges_go_stale_after_30_seconds_and_the_last_time_stays(self) -> None:
        model = fold(decode())
        assert stage(model.snapshot(T + 30)).running_reqs == 4
        late = stage(model.snapshot(T + 30.1))
        assert late.running_reqs is None
        assert late.token_usage_ratios == {}
        assert late.last_batch_at == T
        assert late.modes[0].batches == 1

    def test_a_server_that_prints_seldom_keeps_its_gauges_for_four_of_its_gaps(self) -> None:
        model = fold(*(decode(T + 20 * i) for i in range(5)))
        assert stage(model.snapshot(T + 80 + 79)).running_reqs == 4
        assert stage(model.snapshot(T + 80 + 81)).running_reqs is None

    def test_a_queue_stays_until_a_line_says_it_is_empty(self) -> None:
        model = fold(decode(queued_reqs=9))
        assert stage(model.snapshot(T + 3600)).queued_reqs == 9
        model.fold(decode(T + 3601, queued_reqs=0))
        assert stage(model.snapshot(T + 3602)).queued_reqs == 0
        assert stage(model.snapshot(T + 3700)).queued_reqs is None

    def test_a_queue_ends_with_the_process_that_had_it(self) -> None:
        places = (StageGpu(0, 0, 0, gpu=0, uuid="GPU-a", pid=4000),)
        model = fold(decode(queued_reqs=9), StageMap("kimi", T, places, "process_title"))
        alive = GpuProcess(0, 4000, "sglang::scheduler_PP0")
        model.fold(GpuProcesses(T + 1, gpus=(0,), processes=(alive,)))
        assert stage(model.snapshot(T + 2)).queued_reqs == 9
        model.fold(GpuProcesses(T + 3, gpus=(), processes=()))
        assert stage(model.snapshot(T + 4)).queued_reqs == 9, "a GPU that did not answer"
        model.fold(GpuProcesses(T + 5, gpus=(0,), processes=()))
        assert stage(model.snapshot(T + 6)).queued_reqs is None

    def test_a_new_process_of_a_stage_takes_nothing_from_the_one_before(self) -> None:
        model = fold(decode(queued_reqs=9, accept_length=2.5), decode(T + 1, pid=9999))
        assert stage(model.snapshot(T + 2)).accept_length is None

    def test_higher_tensor_ranks_count_only_when_lower_ones_are_silent(self) -> None:
        model = fold(decode(), decode(tp_rank=1), decode(T + 59, tp_rank=1))
        assert stage(model.snapshot(T + 59)).modes[0].batches == 1
        model.fold(decode(T + 61, tp_rank=1))
        assert stage(model.snapshot(T + 61)).modes[0].batches == 2

    def test_the_only_tensor_rank_that_prints_counts(self) -> None:
        """With DP attention the rank that prints is not 0."""
        model = fold(decode(dp_rank=1, tp_rank=4))
        assert model.snapshot(T).servers[0].stages[0].modes[0].batches == 1

    def test_retractions_are_counted_once_a_stage(self) -> None:
        said = ServerEvent("kimi", T, EventKind.RETRACTION, 0, 0, 0, 4000, count=3)
        model = fold(decode(), said, replace(said, tp_rank=1))
        assert stage(model.snapshot(T)).retracted_requests == 3

    def test_an_exception_ends_the_flight_of_a_queue(self) -> None:
        """The server dies of it; the last line claims waiting requests for ever."""
        model = fold(decode(queued_reqs=3), decode(T + 4, queued_reqs=3))
        model.fold(ServerEvent("kimi", T + 4, EventKind.SCHEDULER_EXCEPTION, 0, 0, 0, 4000))
        (pipeline,) = model.snapshot(T + 60).servers[0].pipelines
        assert pipeline.inflight_seconds == pytest.approx(4.0)

    def test_watchdog_timeouts_are_counted_once_a_stage(self) -> None:
        """Every tensor-parallel rank has a watchdog; a stage that stands still is one event."""
        said = ServerEvent("kimi", T, EventKind.WATCHDOG, 0, 0, 0, 4000)
        model = fold(decode(T - 300), said, replace(said, tp_rank=1))
        assert stage(model.snapshot(T)).watchdog_timeouts == 1

    def test_a_new_launch_clears_gauges_and_keeps_counters(self) -> None:
        model = fold(facts(pp_size=4), decode(pp=3), facts(new_launch=True, pp_size=2))
        snapshot = model.snapshot(T)
        assert [s.pp_rank for s in snapshot.servers[0].stages] == [0, 1]
        model = fold(facts(pp_size=2), decode(pp=1), facts(new_launch=True, pp_size=2))
        assert stage(model.snapshot(T), 1).running_reqs is None
        assert stage(model.snapshot(T), 1).modes[0].batches == 1

    def test_stages_are_bounded_and_the_rest_is_refused(self) -> None:
        model = fold(*(decode(pp=i % 64, dp_rank=i // 64) for i in range(70)))
        snapshot = model.snapshot(T)
        assert len(snapshot.servers[0].stages) == MAX_STAGES
        assert snapshot.refused_lines == {Refusal.RANK_OUT_OF_BOUNDS: 6}

    def test_refusals_and_unknown_fields_are_counted(self) -> None:
        refused = RefusedLine("kimi", T, Refusal.GLUED)
        snapshot = fold(refused, refused, decode(unknown_fields=2)).snapshot(T)
        assert snapshot.refused_lines == {Refusal.GLUED: 2}
        assert snapshot.unknown_fields == 2

    @pytest.mark.parametrize(
        ("facts", "pp_size", "ranks"),
        [
            ({}, 8, range(8)),
            ({"nnodes": 2, "node_rank": 1}, 8, range(4, 8)),
            ({"nnodes": 2, "node_rank": 0}, 2, range(1)),
            ({"nnodes": 4, "node_rank": 3}, 2, range(1, 2)),
            ({"nnodes": 2}, 4, range(4)),
        ],
    )
    def test_stages_of_this_node(self, facts: dict[str, int], pp_size: int, ranks: range) -> None:
        assert local_pp_ranks({**facts, "pp_size": pp_size}) == ranks

    def test_an_interval_that_hides_micro_batches_is_named(self) -> None:
        hiding = fold(facts(pp_size=8, decode_log_interval=40), decode())
        showing = fold(facts(pp_size=8, decode_log_interval=41), decode())
        assert "decode_log_interval" in hiding.snapshot(T).recommendations
        assert "decode_log_interval" not in showing.snapshot(T).recommendations


class TestGpus:
    def test_resident_and_observed_seconds_are_integrated(self) -> None:
        snapshot = fold(GpuIdentity(0, "GPU-a"), ring(0, int(T), 0.5)).snapshot(T + 1)
        assert gpu(snapshot).resident_seconds == pytest.approx(0.5)
        assert gpu(snapshot).observed_seconds[Signal.UTILIZATION] == pytest.approx(1.0)
        assert gpu(snapshot).missed_seconds[Signal.UTILIZATION] == 0

    def test_a_signal_never_seen_is_absent(self) -> None:
        snapshot = fold(GpuIdentity(0, "GPU-a")).snapshot(T)
        assert gpu(snapshot).resident_seconds is None
        assert gpu(snapshot).observed_seconds == {}
        assert gpu(snapshot).power_watts is None
        assert gpu(snapshot).sm_active_seconds is None

    def test_the_gauge_is_the_last_complete_second_and_goes_stale(self) -> None:
        model = fold(GpuIdentity(0, "GPU-a"), ring(0, int(T), 0.5), ring(0, int(T) + 1, 0.9, 2))
        assert gpu(model.snapshot(T + 1.5)).utilization_ratio == pytest.approx(0.5)
        assert gpu(model.snapshot(T + 7)).utilization_ratio is None

    def test_the_polled_gauge_serves_only_where_there_is_no_ring(self) -> None:
        polled = GpuGauges(0, T, polled_utilization_ratio=0.99)
        model = fold(GpuIdentity(0, "GPU-a"), polled)
        assert gpu(model.snapshot(T)).utilization_ratio == 0.99
        assert gpu(model.snapshot(T)).resident_seconds is None
        model.fold(ring(0, int(T), 0.5))
        assert gpu(model.snapshot(T + 1)).utilization_ratio == pytest.approx(0.5)

    def test_a_lost_gpu_loses_its_gauges_and_keeps_its_counters(self) -> None:
        model = fold(
            GpuIdentity(3, "GPU-d"),
            ring(3, int(T), 0.5),
            GpuGauges(3, T + 1, power_watts=250.0, temperature_celsius=60, energy_joules=1e6),
        )
        assert gpu(model.snapshot(T + 1), 3).power_watts == 250.0
        model.fold(GpuState(3, T + 1, up=False, reason="GPU_IS_LOST"))
        lost = gpu(model.snapshot(T + 1), 3)
        assert (lost.up, lost.down_reason) == (False, "GPU_IS_LOST")
        assert lost.power_watts is None
        assert lost.temperature_celsius is None
        assert lost.energy_joules is None
        assert lost.utilization_ratio is None
        assert lost.resident_seconds == pytest.approx(0.5)
        model.fold(GpuState(3, T + 9, up=True))
        model.fold(ring(3, int(T) + 10, 0.5))
        back = gpu(model.snapshot(T + 11), 3)
        assert back.up
        assert back.missed_seconds[Signal.UTILIZATION] == pytest.approx(9.0)
        assert back.observed_seconds[Signal.UTILIZATION] == pytest.approx(2.0)

    def test_another_card_in_the_slot_starts_anew(self) -> None:
        model = fold(GpuIdentity(0, "GPU-a"), ring(0, int(T), 0.5), GpuIdentity(0, "GPU-b"))
        assert gpu(model.snapshot(T + 1)).resident_seconds is None

    def test_gauges_of_a_hanging_driver_are_unknown(self) -> None:
        model = fold(GpuIdentity(0, "GPU-a"), GpuGauges(0, T, temperature_celsius=60.0))
        assert gpu(model.snapshot(T + 4)).temperature_celsius == 60.0
        assert gpu(model.snapshot(T + 6)).temperature_celsius is None

    def test_counters_read_every_ten_seconds_stay_between_readings(self) -> None:
        model = fold(
            GpuIdentity(0, "GPU-a"),
            GpuGauges(0, T, energy_joules=1e6),
            GpuGauges(0, T + 9, temperature_celsius=60.0),
        )
        assert gpu(model.snapshot(T + 9)).energy_joules == 1e6

    def test_power_samples_carry_the_energy_counter_on_from_reading_to_reading(self) -> None:
        model = fold(GpuIdentity(0, "GPU-a"), power(0, int(T), 300.0))
        model.fold(GpuGauges(0, T + 1, energy_joules=1e6))
        model.fold(power(0, int(T) + 1, 300.0))
        model.fold(GpuGauges(0, T + 2, energy_joules=1e6))  # the same reading, repeated
        assert gpu(model.snapshot(T + 2)).energy_joules == pytest.approx(1e6 + 300.0)
        model.fold(power(0, int(T) + 2, 300.0))
        model.fold(GpuGauges(0, T + 3, energy_joules=1e6 + 610.0))
        assert gpu(model.snapshot(T + 3)).energy_joules == pytest.approx(1e6 + 610.0)

    def test_energy_never_falls_back_to_a_lower_reading(self) -> None:
        model = fold(GpuIdentity(0, "GPU-a"), GpuGauges(0, T, energy_joules=1e6))
        model.fold(power(0, int(T), 300.0))
        model.fold(GpuGauges(0, T + 1, energy_joules=1e6 + 290.0))
        assert gpu(model.snapshot(T + 1)).energy_joules == pytest.approx(1e6 + 300.0)
        model.fold(power(0, int(T) + 1, 300.0))
        assert gpu(model.snapshot(T + 2)).energy_joules == pytest.approx(1e6 + 590.0)

    def test_energy_begins_anew_with_the_drivers_counter(self) -> None:
        model = fold(GpuIdentity(0, "GPU-a"), GpuGauges(0, T, energy_joules=1e6))
        model.fold(power(0, int(T), 300.0))
        model.fold(GpuGauges(0, T + 1, energy_joules=50.0))
        assert gpu(model.snapshot(T + 1)).energy_joules == pytest.approx(50.0)

    def test_activity_is_integrated_from_gpm_windows(self) -> None:
        model = fold(
            GpmWindow(0, T, T + 1, sm_ratio=0.6, dram_ratio=0.5),
            GpmWindow(0, T + 1, T + 2, sm_ratio=0.2, dram_ratio=None),
        )
        snapshot = gpu(model.snapshot(T + 2))
        assert snapshot.sm_active_seconds == pytest.approx(0.8)
        assert snapshot.dram_active_seconds == pytest.approx(0.5)
        assert snapshot.observed_seconds[Signal.GPM] == pytest.approx(2.0)

    def test_a_throttle_reason_is_charged_the_time_between_readings(self) -> None:
        model = fold(
            GpuGauges(0, T, throttle_reasons=()),
            GpuGauges(0, T + 1, throttle_reasons=("sw_power_cap",)),
            GpuGauges(0, T + 2, throttle_reasons=("sw_power_cap",)),
            GpuGauges(0, T + 60, throttle_reasons=("sw_power_cap",)),
        )
        assert gpu(model.snapshot(T + 60)).throttled_seconds == {"sw_power_cap": 2.0}

    def test_xids_are_counted_by_number(self) -> None:
        model = fold(XidError(0, T, 79), XidError(0, T, 79), XidError(0, T, 13))
        assert gpu(model.snapshot(T)).xid_errors == {79: 2, 13: 1}


class TestStageUtilization:
    def places(self, *gpus: int) -> StageMap:
        stages = tuple(StageGpu(0, 0, tp, gpu=g, uuid=f"GPU-{g}") for tp, g in enumerate(gpus))
        return StageMap("kimi", T, stages, "process_title")

    def test_it_is_the_highest_of_the_ranks_in_the_same_second(self) -> None:
        model = fold(self.places(0, 1), ring(0, int(T), 0.5), ring(1, int(T), 0.8))
        assert stage(model.snapshot(T + 1)).gpu_utilization_ratio == pytest.approx(0.8)
        model.fold(ring(0, int(T) + 1, 0.1))
        assert stage(model.snapshot(T + 2)).gpu_utilization_ratio == pytest.approx(0.8)

    def test_an_unmapped_stage_has_none(self) -> None:
        model = fold(decode(), ring(0, int(T), 0.5))
        assert stage(model.snapshot(T + 1)).gpu_utilization_ratio is None

    def test_one_unknown_rank_makes_the_stage_unknown(self) -> None:
        model = fold(self.places(0, 1), ring(0, int(T), 0.5))
        assert stage(model.snapshot(T + 1)).gpu_utilization_ratio is None

    def test_a_gpu_names_the_ranks_that_run_on_it(self) -> None:
        snapshot = fold(self.places(0, 1)).snapshot(T)
        assert [(r.server, r.pp_rank, r.tp_rank) for r in gpu(snapshot, 1).ranks] == [
            ("kimi", 0, 1)
        ]
        assert snapshot.servers[0].mapped_by == "process_title"


class TestForwardOccupancy:
    def lines(self, *, seconds: int = 20) -> list[Batch]:
        return [
            decode(T + second + pp / 10, pp=pp, forward_occupancy_ratio=0.8 + pp / 10)
            for second in range(seconds)
            for pp in range(2)
        ]

    def test_without_any_gpu_stages_are_seen_through_what_they_print(self) -> None:
        model = fold(facts(pp_size=2), *self.lines())
        model.close(T + 20)
        (pipeline,) = model.snapshot(T + 20).servers[0].pipelines
        for figures, share in zip(pipeline.stages, (0.8, 0.9), strict=True):
            working = figures.seconds[StageState.WORKING, Method.FORWARD_OCCUPANCY]
            idle = figures.seconds[StageState.IDLE, Method.FORWARD_OCCUPANCY]
            assert working + idle == pytest.approx(19.0, abs=0.2)
            assert working / (working + idle) == pytest.approx(share, abs=0.01)
            assert {method for _, method in figures.seconds} == {Method.FORWARD_OCCUPANCY}

    def test_where_a_gpu_is_seen_the_printed_figure_is_not_used(self) -> None:
        model = fold(GpuIdentity(0, "GPU-a"), facts(pp_size=2), *self.lines())
        model.close(T + 20)
        (pipeline,) = model.snapshot(T + 20).servers[0].pipelines
        assert not any(figures.seconds for figures in pipeline.stages)

    def test_it_goes_on_after_a_restart_of_the_server(self) -> None:
        """The mapper then says that no GPU is known: an empty map."""
        later = [line._replace(logged_at=line.logged_at + 30, pid=9) for line in self.lines()]
        restart = replace(facts(new_launch=True, pp_size=2), known_at=T + 25)
        model = fold(facts(pp_size=2), *self.lines(), restart, StageMap("kimi", T + 25, (), ""))
        for line in later:
            model.fold(line)
        model.close(T + 50)
        (pipeline,) = model.snapshot(T + 50).servers[0].pipelines
        for figures in pipeline.stages:
            assert sum(figures.seconds.values()) == pytest.approx(38.0, abs=1.0)


class TestRestartsAndPeers:
    def test_one_gpu_of_a_pipeline_over_two_hosts_may_wait(self) -> None:
        """Its neighbor runs elsewhere: half at the waiting level is half waiting."""
        levels = GpuLevels(
            0, ActivityLevel(watts=80.0), ActivityLevel(watts=120.0), ActivityLevel(watts=280.0)
        )
        model = fold(
            facts(pp_size=2, tp_size=1, nnodes=2, node_rank=0),
            GpuIdentity(0, "GPU-a", power_limit_watts=600.0),
            levels,
            StageMap("kimi", T, (StageGpu(0, 0, 0, gpu=0),), "process_title"),
        )
        for second in range(20):
            watts = tuple(
                (T + second + 0.02 * (i + 1), 280.0 if i < 25 else 120.0) for i in range(50)
            )
            model.fold(RingSamples(0, Signal.POWER, 0.02, watts))
            model.fold(ring(0, int(T) + second, 1.0))
        model.close(T + 20)
        (pipeline,) = model.snapshot(T + 20).servers[0].pipelines
        (figures,) = pipeline.stages
        total = sum(figures.seconds.values())
        assert figures.seconds[StageState.WORKING, Method.POWER] / total == pytest.approx(
            0.5, abs=0.03
        )

    def test_a_launch_with_fewer_stages_leaves_none_of_the_others_behind(self) -> None:
        model = fold(facts(pp_size=4), decode(pp=3), facts(new_launch=True, pp_size=2))
        (pipeline,) = model.snapshot(T).servers[0].pipelines
        assert [figures.pp_rank for figures in pipeline.stages] == [0, 1]
        assert len(pipeline.active_stages_seconds) <= 3

    def test_a_stage_that_is_back_counts_on_where_an_earlier_launch_left_it(self) -> None:
        model = fold(facts(pp_size=4), decode(pp=3), decode(pp=3))
        model.fold(facts(new_launch=True, pp_size=2))
        assert [shown.pp_rank for shown in model.snapshot(T).servers[0].stages] == [0, 1]
        model.fold(facts(new_launch=True, pp_size=4))
        assert stage(model.snapshot(T), 3).running_reqs is None
        model.fold(decode(pp=3))
        (counted,) = (
            mode for mode in stage(model.snapshot(T), 3).modes if mode.mode is Mode.DECODE
        )
        assert counted.batches == 3

    def test_a_setting_once_seen_is_not_recommended_for_a_line_without_it(self) -> None:
        """SGLang prints `nan%` at the start of each window."""
        model = fold(decode(forward_occupancy_ratio=0.9), decode(forward_occupancy_ratio=None))
        assert "SGLANG_ENABLE_METRICS_DEVICE_TIMER" not in model.snapshot(T).recommendations

    def test_a_gpu_that_nobody_has_seen_is_neither_up_nor_down(self) -> None:
        places = (StageGpu(0, 0, 0, gpu=5),)
        assert gpu(fold(StageMap("kimi", T, places, "recording")).snapshot(T), 5).up is None
