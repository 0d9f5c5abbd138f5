"""Verdicts on figures made by hand: what decides, what is left open, what is advised."""

from dataclasses import replace

import pytest

from exporter.diagnosis.advice import advice
from exporter.diagnosis.figures import Figures, LogFigures, StageFigures
from exporter.diagnosis.findings import CONFIDENT, Missing, Verdict
from exporter.diagnosis.likeness import against_reference
from exporter.diagnosis.report import as_text
from exporter.diagnosis.slot_hypotheses import herd_bound
from exporter.diagnosis.slots_in_window import BY_WORKING
from exporter.diagnosis.terminal import Paper
from exporter.diagnosis.verdict import Diagnosis, diagnose
from exporter.pipeline.figures import SlotFigures

STAGES = 8


def slots(*sizes: int, of: int = STAGES) -> SlotFigures:
    """Slots that hold these requests."""
    total, squares = sum(sizes), sum(size * size for size in sizes)
    effective = total * total / squares
    return SlotFigures(
        slots=of,
        observable=len(sizes),
        aliased=False,
        active=len(sizes),
        active_from="known concurrency over the mean batch size",
        sizes=sizes,
        effective=effective,
        size_variation=(of / effective - 1.0) ** 0.5,
        running_requests=float(total),
    )


def stages(*working: float, idle: float = 0.0) -> tuple[StageFigures, ...]:
    """Measured stages that work so much and wait for the rest."""
    return tuple(
        StageFigures(
            pp_rank=rank,
            gpus=(rank,),
            measured_ratio=1.0,
            working_ratio=share,
            waiting_ratio=max(1.0 - share - idle, 0.0),
            working_at_most_ratio=share,
            working_at_least_ratio=share,
            idle_ratio=idle,
            first_half_working_ratio=share,
            second_half_working_ratio=share,
            throttled_ratio=0.0,
            lost_seconds=0.0,
        )
        for rank, share in enumerate(working)
    )


def figures(
    *, of: tuple[StageFigures, ...], held: SlotFigures, version: str = "0.5.23", **log: object
) -> Figures:
    """A measured pipeline with a minute's window."""
    working = [stage.working_ratio or 0.0 for stage in of]
    mean = sum(working) / len(working)
    lines = LogFigures(
        decode_lines=100,
        mean_batch_requests=sum(held.sizes or (1,)) / len(held.sizes or (1,)),
        graph_ratio=1.0,
        queued_requests=0.0,
        queued_ratio=0.0,
        pool_ratio=0.3,
        tokens_per_second=500.0,
        prefill_ratio=0.0,
        prefill_tokens_per_second=0.0,
    )
    return Figures(
        window_seconds=60.0,
        facts={"version": version, "pp_async_batch_depth": (held.slots or STAGES) - STAGES},
        pp_size=STAGES,
        local_stages=STAGES,
        stages=of,
        slots=held,
        log=replace(lines, **log),  # type: ignore[arg-type]  # a test's own keywords
        measured=True,
        occupancy_ratio=mean,
        occupancy_at_most_ratio=mean,
        occupancy_at_least_ratio=mean,
        waiting_ratio=sum(stage.waiting_ratio or 0.0 for stage in of) / len(of),
        idle_ratio=sum(stage.idle_ratio or 0.0 for stage in of) / len(of),
        highest_working_ratio=max(working),
        skew_ratio=max(working) - min(working),
        balance_ratio=mean / max(working),
        active_stages_mean=sum(working),
        stopped_ratio=0.0,
        paused_ratio=0.0,
        longest_stop_seconds=0.0,
    )


def even(working: float = 0.95, idle: float = 0.0) -> Figures:
    return figures(of=stages(*[working] * STAGES, idle=idle), held=slots(*[4] * STAGES))


def is_sure(diagnosis: Diagnosis, verdict: Verdict) -> bool:
    return diagnosis.verdict is verdict and diagnosis.confidence >= CONFIDENT


def test_full_stages_and_even_slots_are_healthy() -> None:
    assert is_sure(diagnose(even()), Verdict.HEALTHY)


def test_one_slot_that_holds_all_is_a_herd_and_the_cap_is_advised() -> None:
    diagnosis = diagnose(figures(of=stages(*[0.12] * STAGES, idle=0.7), held=slots(32)))
    assert is_sure(diagnosis, Verdict.THUNDERING_HERD)
    assert diagnosis.gain.ratio == pytest.approx(8.0)
    assert any("--pp-max-micro-batch-size 4" in each for each in advice(diagnosis))


def test_an_older_server_is_advised_its_own_flag() -> None:
    seen = figures(of=stages(*[0.12] * STAGES), held=slots(32), version="0.5.3")
    assert any(each.startswith("--max-micro-batch-size 4") for each in advice(diagnose(seen)))


@pytest.mark.parametrize(("stages_", "bound"), [(2, 1.5), (4, 1.5), (8, 2.0), (16, 4.0)])
def test_the_bound_of_a_herd_is_a_quarter_of_the_stages(stages_: int, bound: float) -> None:
    assert herd_bound(stages_) == bound


def test_a_herd_told_by_working_stages_alone_is_not_sure() -> None:
    held = replace(slots(32), active_from=BY_WORKING)
    diagnosis = diagnose(figures(of=stages(*[0.12] * STAGES, idle=0.8), held=held))
    assert diagnosis.verdict is Verdict.THUNDERING_HERD
    assert diagnosis.confidence < CONFIDENT


def test_hidden_slots_are_bounded_by_the_largest_that_is_seen() -> None:
    hidden = replace(slots(28, 2, 1, 1), sizes=None, effective=None, reason="hidden")
    work = stages(*[0.15] * STAGES)
    seen = figures(of=work, held=hidden, mean_batch_requests=28.0)
    herd = diagnose(replace(seen, effective_at_most=1.3))
    assert (herd.verdict, is_sure(herd, Verdict.THUNDERING_HERD)) == (
        Verdict.THUNDERING_HERD,
        False,
    )
    assert Missing.SLOTS in herd.missing
    assert Verdict.UNEVEN_SPLIT not in herd.also
    assert diagnose(replace(seen, effective_at_most=4.0)).verdict is Verdict.UNEVEN_SPLIT
    assert advice(herd)[0].startswith("--pp-max-micro-batch-size 4:")


def test_unequal_slots_are_an_uneven_split() -> None:
    held = slots(12, 7, 4, 3, 2, 2, 1, 1)
    diagnosis = diagnose(figures(of=stages(*[0.35] * STAGES), held=held))
    assert is_sure(diagnosis, Verdict.UNEVEN_SPLIT)


def test_more_slots_than_stages_are_over_split() -> None:
    held = slots(*[2] * 16, of=16)
    diagnosis = diagnose(figures(of=stages(*[0.99] * STAGES), held=held))
    assert is_sure(diagnosis, Verdict.OVER_SPLIT)
    assert any("--pp-async-batch-depth 0" in each for each in advice(diagnosis))


def test_many_slots_are_no_fault_where_the_fit_says_that_larger_ones_gain_nothing() -> None:
    held = slots(*[2] * 16, of=16)
    seen = replace(figures(of=stages(*[0.99] * STAGES), held=held), even_split_gain_ratio=1.0)
    assert diagnose(seen).verdict is Verdict.HEALTHY


def test_a_slow_last_stage_is_an_imbalance() -> None:
    diagnosis = diagnose(figures(of=stages(*[0.65] * 7, 1.0), held=slots(*[4] * STAGES)))
    assert is_sure(diagnosis, Verdict.STAGE_IMBALANCE)


def test_a_slow_inner_stage_without_throttle_readings_is_not_sure() -> None:
    seen = stages(0.65, 0.65, 1.0, *[0.65] * 5)
    unread = tuple(replace(stage, throttled_ratio=None) for stage in seen)
    diagnosis = diagnose(figures(of=unread, held=slots(*[4] * STAGES)))
    assert diagnosis.verdict is Verdict.STAGE_IMBALANCE
    assert diagnosis.confidence < CONFIDENT
    assert Missing.THROTTLING in diagnosis.missing


def test_a_throttled_slow_stage_is_a_fault_of_its_card_and_explains_the_imbalance() -> None:
    seen = list(stages(0.65, 0.65, 1.0, *[0.65] * 5))
    seen[2] = replace(seen[2], throttled_ratio=0.9, throttle_reasons=("sw_thermal_slowdown",))
    diagnosis = diagnose(figures(of=tuple(seen), held=slots(*[4] * STAGES)))
    assert is_sure(diagnosis, Verdict.GPU_FAULT)
    assert diagnosis.also == (Verdict.STAGE_IMBALANCE,)


def test_a_slow_stage_that_draws_less_at_work_may_be_its_cards_fault() -> None:
    seen = [replace(s, working_watts=280.0) for s in stages(0.65, 0.65, 1.0, *[0.65] * 5)]
    seen[2] = replace(seen[2], working_watts=190.0)
    diagnosis = diagnose(figures(of=tuple(seen), held=slots(*[4] * STAGES)))
    assert diagnosis.verdict is Verdict.GPU_FAULT
    assert diagnosis.confidence < CONFIDENT, "nobody measured what a throttled card draws"


def test_a_slow_last_stage_is_sure_and_says_that_its_throttle_reasons_were_not_read() -> None:
    seen = [replace(s, throttled_ratio=None) for s in stages(*[0.65] * 7, 1.0)]
    diagnosis = diagnose(figures(of=tuple(seen), held=slots(*[4] * STAGES)))
    assert is_sure(diagnosis, Verdict.STAGE_IMBALANCE)
    assert Missing.THROTTLING in diagnosis.missing


def test_a_stage_that_is_not_measured_but_draws_most_is_what_the_others_wait_for() -> None:
    known = list(stages(*[0.5] * STAGES))
    known[3] = replace(known[3], working_ratio=None, throttled_ratio=None)
    seen = replace(
        figures(of=tuple(known), held=slots(*[4] * STAGES)),
        measured=False,
        skew_ratio=None,
        occupancy_at_least_ratio=None,
        stage_likeness={"watts": 0.7},
        likeness_leader=3,
    )
    diagnosis = diagnose(seen)
    assert diagnosis.verdict is Verdict.STAGE_IMBALANCE
    assert diagnosis.confidence < CONFIDENT
    assert diagnose(replace(seen, likeness_leader=0)).verdict is Verdict.CANNOT_TELL


def counted(seen: Figures) -> Diagnosis:
    """Nobody told the load; the requests are counted by their prefill."""
    return diagnose(replace(seen, counted_requests=32))


def test_counted_requests_may_have_been_answered_so_full_slots_are_not_sure() -> None:
    diagnosis = counted(even(working=0.45, idle=0.55))
    assert diagnosis.verdict is Verdict.HOST_BOUND
    assert diagnosis.confidence < CONFIDENT
    diagnosis = counted(even(working=0.35, idle=0.1))
    assert diagnosis.verdict is Verdict.TRANSFER_BOUND
    assert diagnosis.confidence < CONFIDENT


def test_fewer_than_the_counted_requests_would_be_a_herd_as_well() -> None:
    seen = figures(of=stages(*[0.12] * STAGES, idle=0.7), held=slots(32))
    assert is_sure(counted(seen), Verdict.THUNDERING_HERD)


def by_log_alone(device: str) -> Diagnosis:
    seen = even()
    return diagnose(
        Figures(
            window_seconds=60.0,
            facts={"device": device},
            pp_size=STAGES,
            slots=seen.slots,
            log=seen.log,
        )
    )


def test_an_even_log_is_no_health_where_gpus_are_not_seen() -> None:
    diagnosis = by_log_alone("cuda")
    assert diagnosis.verdict is Verdict.CANNOT_TELL
    assert Missing.GPUS in diagnosis.missing
    assert "filled_slots_ratio" in {each.quantity for each in diagnosis.evidence}
    assert "8 of 8 micro-batches" in as_text(diagnosis)


def test_an_even_log_is_all_that_a_server_without_gpus_can_show() -> None:
    diagnosis = by_log_alone("cpu")
    assert diagnosis.verdict is Verdict.HEALTHY
    assert diagnosis.confidence < CONFIDENT


def test_gaps_between_batches_of_full_slots_are_the_hosts() -> None:
    assert is_sure(diagnose(even(working=0.45, idle=0.55)), Verdict.HOST_BOUND)


def test_gaps_without_graphs_are_for_want_of_graphs() -> None:
    seen = even(working=0.2, idle=0.8)
    diagnosis = diagnose(replace(seen, log=replace(seen.log, graph_ratio=0.0)))
    assert is_sure(diagnosis, Verdict.GRAPH_OFF)
    assert diagnosis.also == (Verdict.HOST_BOUND,)


def test_decode_without_graphs_is_not_judged_where_no_gpu_is_seen() -> None:
    seen = even()
    blind = Figures(
        window_seconds=60.0,
        pp_size=STAGES,
        local_stages=None,
        slots=seen.slots,
        log=replace(seen.log, graph_ratio=0.0),
    )
    diagnosis = diagnose(blind)
    assert diagnosis.verdict is not Verdict.GRAPH_OFF, "a CPU server prints the same"
    assert diagnosis.confidence < CONFIDENT


def test_waiting_in_full_slots_is_the_transfers() -> None:
    assert is_sure(diagnose(even(working=0.35, idle=0.1)), Verdict.TRANSFER_BOUND)


def test_stops_of_all_stages_are_a_stall_and_the_clients_pauses_are_not() -> None:
    seen = even(working=0.5, idle=0.5)
    assert is_sure(diagnose(replace(seen, stopped_ratio=0.5)), Verdict.GLOBAL_STALL)
    assert diagnose(replace(seen, paused_ratio=0.5)).verdict is not Verdict.GLOBAL_STALL


def test_few_clients_are_named_as_such() -> None:
    diagnosis = diagnose(
        figures(of=stages(*[0.4] * STAGES), held=slots(1, 1, 1, 1), mean_batch_requests=1.0)
    )
    assert is_sure(diagnosis, Verdict.CLIENT_LIMITED)


def test_a_full_pool_with_a_queue_is_the_limit() -> None:
    seen = even(working=0.9)
    log = replace(seen.log, pool_ratio=0.97, queued_requests=20.0, queued_ratio=1.0)
    assert is_sure(diagnose(replace(seen, log=log)), Verdict.KV_LIMITED)


def test_prefill_that_takes_half_of_the_time_interferes() -> None:
    seen = even(working=0.5)
    log = replace(seen.log, prefill_ratio=0.5)
    assert is_sure(diagnose(replace(seen, log=log)), Verdict.PREFILL_INTERFERENCE)


def test_upper_bounds_alone_give_no_confident_verdict() -> None:
    seen = even()
    bound = tuple(
        StageFigures(pp_rank=rank, gpus=(rank,), working_at_most_ratio=1.0, idle_ratio=0.0)
        for rank in range(STAGES)
    )
    unmeasured = replace(
        seen,
        stages=bound,
        measured=False,
        occupancy_ratio=None,
        occupancy_at_most_ratio=1.0,
        occupancy_at_least_ratio=None,
        waiting_ratio=None,
        highest_working_ratio=None,
        skew_ratio=None,
        balance_ratio=None,
    )
    diagnosis = diagnose(unmeasured)
    assert diagnosis.verdict is Verdict.CANNOT_TELL
    assert Missing.WORKING in diagnosis.missing


def test_a_part_of_a_pipeline_is_never_judged_confidently() -> None:
    held = slots(32)
    diagnosis = diagnose(replace(figures(of=stages(*[0.12] * 4), held=held), local_stages=4))
    assert diagnosis.confidence < CONFIDENT
    assert Missing.STAGES in diagnosis.missing


@pytest.mark.parametrize("contradicted", [{"named_stages": 8}, {"foreign_rank_ratio": 0.8}])
def test_a_pipeline_size_that_ranks_contradict_is_never_judged_confidently(
    contradicted: dict[str, float],
) -> None:
    seen = replace(figures(of=stages(*[0.12] * 4), held=slots(32, of=4)), pp_size=4, local_stages=4)
    assert is_sure(diagnose(seen), Verdict.THUNDERING_HERD)
    diagnosis = diagnose(replace(seen, **contradicted))
    assert diagnosis.confidence < CONFIDENT
    assert Missing.SIZES in diagnosis.missing
    assert any("contradict" in each.source for each in diagnosis.evidence)


def test_one_forged_rank_among_many_lines_costs_no_confidence() -> None:
    seen = replace(figures(of=stages(*[0.12] * STAGES), held=slots(32)), foreign_rank_ratio=0.01)
    assert is_sure(diagnose(seen), Verdict.THUNDERING_HERD)


def test_a_split_near_the_bound_of_a_herd_is_said_to_be() -> None:
    near = (slots(22, 7, 3), slots(19, 10, 3))
    herd, uneven = (figures(of=stages(*[0.25] * STAGES), held=held) for held in near)
    assert diagnose(herd).verdict is Verdict.THUNDERING_HERD
    assert diagnose(uneven).verdict is Verdict.UNEVEN_SPLIT
    for seen in (herd, uneven):
        assert "near 2, the bound between a herd and an uneven split" in report_on(seen)
    assert "the bound between" not in report_on(figures(of=stages(*[0.25] * 8), held=slots(32)))


def test_a_gain_without_a_number_is_said_not_to_be_predicted() -> None:
    measured = figures(of=stages(*[0.12] * STAGES), held=slots(32))
    held = replace(measured.slots, sizes=None)
    seen = replace(measured, measured=False, occupancy_at_most_ratio=None, stages=(), slots=held)
    diagnosis = diagnose(seen)
    assert diagnosis.verdict is Verdict.THUNDERING_HERD
    assert diagnosis.gain.ratio is None
    assert "gain not predicted: what it follows from is not known" in report_on(seen)


def test_a_cap_that_was_just_tried_is_not_advised_to_be_tried() -> None:
    diagnosis = diagnose(figures(of=stages(*[0.12] * STAGES), held=slots(32)))
    assert "Try it live" in as_text(diagnosis, tried_cap=8)
    told = as_text(diagnosis, tried_cap=4)
    assert "Try it live" not in told
    assert "--pp-max-micro-batch-size 4: 32 requests over 8 stages" in told


def test_of_several_the_largest_gain_is_the_verdict() -> None:
    seen = figures(of=stages(*[0.12] * STAGES), held=slots(32))
    log = replace(seen.log, prefill_ratio=0.3)
    diagnosis = diagnose(replace(seen, log=log))
    assert diagnosis.verdict is Verdict.THUNDERING_HERD
    assert diagnosis.also == (Verdict.PREFILL_INTERFERENCE,)


def snapshot() -> Figures:
    """The question that this project began with: one look at eight GPUs, and two throughputs."""
    utilization = (0.89, 0.43, 0.53, 0.81, 0.82, 0.92, 0.69, 0.83)
    # The shape of the power figures (three steps, 3-4-1, the last 14 % above the mean); the watts
    # themselves are made up.
    watts = (215.0, 216.0, 214.0, 235.0, 234.0, 236.0, 235.0, 263.0)
    seen = Figures(
        pp_size=STAGES,
        facts={"pp_size": STAGES, "tp_size": 1},
        concurrency=32,
        stages=tuple(
            StageFigures(rank, (rank,), watts=drawn, momentary_utilization_ratio=share)
            for rank, (share, drawn) in enumerate(zip(utilization, watts, strict=True))
        ),
        log=LogFigures(tokens_per_second=248.1),
        single_stream_tokens_per_second=34.3,
    )
    return against_reference(seen)


@pytest.mark.parametrize(
    "unknown",
    [
        {"single_stream_tokens_per_second": None},
        {"log": LogFigures()},
        {"pp_size": None},
    ],
    ids=["no single stream", "no throughput", "no number of stages"],
)
def test_no_scaling_is_told_where_one_of_its_parts_is_not_known(unknown: dict[str, object]) -> None:
    seen = replace(snapshot(), scaling_ratio=None, **unknown)  # type: ignore[arg-type]  # fields
    assert against_reference(seen).scaling_ratio is None


def tensor_parallel() -> Figures:
    """The other half of that question: the same cards as one stage."""
    seen = Figures(
        pp_size=1,
        facts={"pp_size": 1, "tp_size": STAGES},
        concurrency=32,
        log=LogFigures(tokens_per_second=577.8),
        single_stream_tokens_per_second=26.3,
    )
    return against_reference(seen)


def unseen_slots() -> Figures:
    return figures(
        of=stages(*[0.95] * STAGES), held=SlotFigures(slots=STAGES, reason="too few lines")
    )


def test_slots_that_are_not_seen_are_said_to_be_so() -> None:
    assert "slots not observable: too few lines" in report_on(unseen_slots())


def report_on(seen: Figures) -> str:
    """The printed report in one line, as it is read."""
    return " ".join(as_text(diagnose(seen)).split())


def test_a_snapshot_decides_nothing_but_its_figures_are_told() -> None:
    diagnosis = diagnose(snapshot())
    assert diagnosis.verdict is Verdict.CANNOT_TELL
    told = {each.quantity: each for each in diagnosis.evidence}
    assert told["scaling_ratio"].value == pytest.approx(0.904, abs=0.001)
    assert told["power_steps"].value == "3-4-1"
    assert told["momentary_spread"].value == pytest.approx(0.49)
    assert {Missing.LOAD, Missing.SLOTS, Missing.WORKING} <= set(diagnosis.missing)


@pytest.mark.parametrize(
    "said",
    [
        "248 tokens/s; 0.90 of 8 single streams",
        "if 4 requests took a stage no longer than one, an even split would give 1098 tokens/s",
        "3-4-1",
        "the last draws 14 % above the mean (mean over highest 0.88)",
        "such as 7,7,7,8,8,8,8,8 plus lm_head on the last",
        "one reading of each GPU, 43 to 92 %: an instant",
        "89%*",
    ],
)
def test_the_report_says_what_a_snapshot_supports(said: str) -> None:
    assert said in report_on(snapshot())


@pytest.mark.parametrize(
    "said",
    [
        "0.90 of 8 single streams fits a full pipeline without gain from batching as well as bursts",
        "only the sizes of the micro-batches decide",
        "power alone does not tell work from waiting",
        "only means over 30 s show a lasting difference",
        "not known - requests in flight for long enough - the sizes of all micro-batches",
    ],
)
def test_the_report_says_what_a_snapshot_cannot_decide(said: str) -> None:
    assert said in report_on(snapshot())


@pytest.mark.parametrize(
    "said", ["diagnose --url URL --sweep 1,32: a steady load of known", "--decode-log-interval 41"]
)
def test_the_report_says_which_run_would_decide(said: str) -> None:
    assert said in report_on(snapshot())


def test_one_stage_is_held_against_its_single_stream_alone() -> None:
    report = report_on(tensor_parallel())
    assert "578 tokens/s; 22 times a single stream" in report
    assert "what batching gives without stages to fill" in report


@pytest.mark.parametrize(
    "seen",
    [even(), snapshot(), tensor_parallel(), unseen_slots(), Figures()],
    ids=["even", "snapshot", "one stage", "unseen slots", "none"],
)
def test_a_report_fits_a_terminal_and_reads_without_color(seen: Figures) -> None:
    diagnosis = diagnose(seen)
    narrow = as_text(diagnosis, Paper(columns=50)).partition("\n\n")[0]
    assert max(map(len, narrow.split("\n"))) <= 50
    plain, colored = as_text(diagnosis), as_text(diagnosis, Paper(color=True))
    assert max(len(line) for line in plain.split("\n")) <= 80
    assert "\x1b" not in plain
    assert colored.replace("\x1b[0m", "") != colored
