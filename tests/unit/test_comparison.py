"""A candidate against a baseline: exact figures, what is not compared, and what is said of it."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.cli import EXIT_ERROR, main
from exporter.compare_command import EXIT_CANNOT_TELL, EXIT_COMPARED
from exporter.comparison.cautions import cautions
from exporter.comparison.compared import Comparison, compare
from exporter.comparison.report import comparison_object, comparison_text
from exporter.comparison.run import Run, run_of
from exporter.comparison.wording import sentence
from exporter.diagnosis.figures import Figures, LogFigures, StageFigures
from exporter.diagnosis.report import contract
from exporter.diagnosis.server_gpus import server_gpus
from exporter.diagnosis.terminal import Paper
from exporter.diagnosis.verdict import diagnose
from exporter.diagnosis.watch import Watch
from exporter.pipeline.figures import SlotFigures
from exporter.records import RingSamples, ServerFacts, Signal, StageGpu, StageMap

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
GPUS = {"seen": 8, "expected": 8, "models": ["NVIDIA RTX PRO 6000"], "watts": 2200.0}

TP8 = Figures(
    window_seconds=60.0,
    facts={"version": "0.5.23", "tp_size": 8, "pp_size": 1, "dp_size": 1},
    pp_size=1,
    local_stages=1,
    concurrency=32,
    log=LogFigures(decode_lines=100, tokens_per_second=577.8, graph_ratio=1.0),
    single_stream_tokens_per_second=26.3,
)
PP8 = Figures(
    window_seconds=60.0,
    facts={"version": "0.5.23", "tp_size": 1, "pp_size": 8, "dp_size": 1},
    pp_size=8,
    local_stages=8,
    concurrency=32,
    log=LogFigures(decode_lines=100, tokens_per_second=248.1, graph_ratio=1.0),
    stages=tuple(
        StageFigures(rank, gpus=(rank,), measured_ratio=1.0, working_ratio=0.31, idle_ratio=0.6)
        for rank in range(8)
    ),
    slots=SlotFigures(
        slots=8,
        observable=8,
        aliased=False,
        active=3,
        active_from="known concurrency over the mean batch size",
        sizes=(28, 2, 2),
        effective=1.3,
        size_variation=2.27,
        running_requests=32.0,
    ),
    measured=True,
    occupancy_ratio=0.31,
    occupancy_at_most_ratio=0.31,
    highest_working_ratio=0.31,
    skew_ratio=0.02,
    active_stages_mean=2.48,
    single_stream_tokens_per_second=34.3,
)


def report(figures: Figures, **more: object) -> dict[str, Any]:
    """What `diagnose --json` prints of these figures."""
    printed = json.loads(json.dumps(contract(diagnose(figures), {"gpus": GPUS, **more})))
    assert isinstance(printed, dict)
    return printed


def run(figures: Figures, **more: object) -> Run:
    return run_of(report(figures, **more))


def load(streams: int, rate: float | None, **more: object) -> dict[str, object]:
    """A load as a report tells it."""
    return {
        "concurrency": streams,
        "rate_per_second": None,
        "prompt_tokens": 512,
        "max_tokens": 1024,
        "ended_by": "duration",
        "seconds": 60.0,
        "output_tokens_per_second": rate,
        "errors": {},
        **more,
    }


def ratio(comparison: Comparison, name: str) -> float | None:
    return comparison.quantities[name].ratio


def written(folder: Path, name: str, text: str | dict[str, Any]) -> str:
    path = folder / name
    path.write_text(text if isinstance(text, str) else json.dumps(text) + "\n")
    return str(path)


# --- figures -----------------------------------------------------------------------------------


def test_the_figures_of_tp8_and_pp8_are_held_against_each_other() -> None:
    comparison = compare(run(TP8), run(PP8))
    figures = comparison.quantities
    assert comparison.throughput_ratio == pytest.approx(248.1 / 577.8)
    assert figures["stream_tokens_per_second"].sides == pytest.approx((577.8 / 32, 248.1 / 32))
    assert ratio(comparison, "single_stream_tokens_per_second") == pytest.approx(34.3 / 26.3)
    gains = figures["batching_gain_ratio"].sides
    assert gains == pytest.approx((21.97, 7.233), abs=0.001)
    assert figures["scaling_ratio"].candidate == pytest.approx(0.904, abs=0.001)
    assert figures["energy_joules_per_token"].sides == pytest.approx((2200 / 577.8, 2200 / 248.1))
    assert cautions(comparison) == []


def test_the_sentence_says_how_much_and_why() -> None:
    assert sentence(compare(run(TP8), run(PP8))) == (
        "PP8 gives 0.43 of TP8's throughput at 32 streams: batching brings 7.2x there against "
        "22x; the pipeline is busy 0.31 of the time because 32 requests sit in 1.3 of 8 "
        "micro-batches."
    )


def test_of_two_pipelines_the_sentence_says_what_differs() -> None:
    slots = replace(PP8.slots, sizes=(4,) * 8, active=8, effective=8.0, size_variation=0.0)
    full = tuple(replace(stage, working_ratio=0.96, idle_ratio=0.0) for stage in PP8.stages)
    log = replace(PP8.log, tokens_per_second=992.4)
    even = replace(
        PP8, slots=slots, stages=full, occupancy_ratio=0.96, highest_working_ratio=0.96, log=log
    )
    assert sentence(compare(run(PP8), run(even))) == (
        "The candidate gives 4.00 times the baseline's throughput at 32 streams: batching brings "
        "29x there against 7.2x; its stages are busy 0.96 of the time against 0.31, and 32 "
        "requests sit in 8 of 8 micro-batches against 1.3."
    )


def test_a_verdict_that_changes_is_said() -> None:
    before, after = report(TP8), report(TP8)
    before.update(verdict="graph_off", confidence=0.9)
    after.update(verdict="healthy", confidence=0.9)
    assert "the verdict on it is healthy, not graph off" in sentence(
        compare(run_of(before), run_of(after))
    )
    after.update(confidence=0.5)
    assert "verdict" not in sentence(compare(run_of(before), run_of(after)))


def test_a_server_of_one_stage_has_no_pipeline_figures_rather_than_zeros() -> None:
    comparison = compare(run(TP8), run(PP8))
    for name in ("bubble_ratio", "effective_microbatches", "stage_skew_ratio", "scaling_ratio"):
        quantity = comparison.quantities[name]
        assert quantity.baseline is None
        assert quantity.candidate is not None
        assert quantity.applies == (False, True)
        assert quantity.ratio is quantity.difference is None
    bubbles = next(
        line for line in comparison_text(comparison).split("\n") if line.startswith("bubbles")
    )
    assert bubbles.split()[1:3] == ["-", "69"]


def test_what_our_load_counted_goes_before_what_the_log_printed() -> None:
    before = run(TP8, load=[load(32, 570.0)])
    after = run(PP8, load=[load(32, 250.0)])
    comparison = compare(before, after)
    assert comparison.throughput_ratio == pytest.approx(250.0 / 570.0)
    assert "by the load" in comparison_text(comparison)
    printed_alone = compare(before, run(PP8))
    assert printed_alone.throughput_ratio == pytest.approx(248.1 / 577.8)
    assert "by the log" in comparison_text(printed_alone)


def test_a_throughput_known_by_different_means_is_said_to_be() -> None:
    silent = replace(PP8, log=LogFigures())
    comparison = compare(run(TP8), run(silent, load=[load(32, 250.0)]))
    assert comparison.throughput_ratio == pytest.approx(250.0 / 577.8)
    assert any("counted by its load, of the other printed" in each for each in cautions(comparison))


def test_latencies_are_compared_where_loads_were_ours() -> None:
    waits = {"time_to_first_token": {"p50_seconds": 0.2, "p99_seconds": 1.0}}
    longer = {"time_to_first_token": {"p50_seconds": 0.5, "p99_seconds": 1.5}}
    comparison = compare(
        run(TP8, load=[load(32, 570.0, **waits)]), run(PP8, load=[load(32, 250.0, **longer)])
    )
    assert ratio(comparison, "time_to_first_token_p50_seconds") == pytest.approx(2.5)
    assert ratio(comparison, "time_to_first_token_p99_seconds") == pytest.approx(1.5)
    assert ratio(comparison, "inter_token_p50_seconds") is None
    assert "next token" not in comparison_text(comparison)


# --- what is not compared ----------------------------------------------------------------------


def test_different_concurrency_is_told_and_not_compared() -> None:
    comparison = compare(run(TP8), run(replace(PP8, concurrency=8)))
    assert comparison.throughput_ratio is None
    assert ratio(comparison, "energy_joules_per_token") is None
    assert comparison.quantities["occupancy_ratio"].difference is None
    said = sentence(comparison)
    assert said.startswith("Cannot tell which gives more: TP8 was loaded with 32 streams, PP8 with")
    assert "a single stream is 1.3 times as fast with PP8" in said
    assert "no ratio" in comparison_text(comparison)


def test_sweeps_are_compared_at_the_most_streams_both_had() -> None:
    before = run(replace(TP8, concurrency=64), load=[load(8, 180.0), load(64, 900.0)])
    after = run(PP8, load=[load(8, 90.0), load(32, 250.0)])
    comparison = compare(before, after)
    assert comparison.throughput_ratio == pytest.approx(0.5)
    assert "at 8 streams" in sentence(comparison)
    assert "busy" not in sentence(comparison)
    assert ratio(comparison, "power_watts") is None
    assert "compared at 8 streams" in cautions(comparison)[0]


def test_an_open_loop_is_not_compared_with_another_rate() -> None:
    slow = load(32, 100.0, rate_per_second=0.5)
    fast = load(32, 200.0, rate_per_second=1.0)
    figures = replace(TP8, concurrency=None, log=LogFigures())
    assert compare(run(figures, load=[slow]), run(figures, load=[fast])).throughput_ratio is None
    same = compare(run(figures, load=[slow]), run(figures, load=[slow]))
    assert same.throughput_ratio == 1.0
    assert cautions(same) == []


def test_other_prompts_are_a_reservation() -> None:
    comparison = compare(
        run(TP8, load=[load(32, 570.0)]), run(PP8, load=[load(32, 250.0, prompt_tokens=8192)])
    )
    assert sentence(comparison).endswith("; but the prompts differ, 512 tokens against 8192.")


def test_an_unknown_load_is_a_reservation() -> None:
    comparison = compare(run(TP8), run(replace(PP8, concurrency=None)))
    assert sentence(comparison).endswith("; if the load was the same: that of PP8 is not known.")


def test_a_bound_on_work_is_not_compared_with_a_measured_share() -> None:
    bound = replace(PP8, measured=False, occupancy_ratio=None, occupancy_at_most_ratio=0.97)
    comparison = compare(run(PP8), run(bound))
    assert comparison.quantities["occupancy_ratio"].sides == (0.31, None)
    assert comparison.quantities["occupancy_at_most_ratio"].sides == (None, 0.97)
    assert comparison.quantities["occupancy_at_most_ratio"].ratio is None
    assert comparison.quantities["bubble_ratio"].candidate is None
    assert any("as a bound only" in each for each in cautions(comparison))
    assert "busy" not in sentence(comparison)


def test_a_short_window_and_a_load_cut_short_are_said() -> None:
    cut = load(32, 250.0, ended_by="stopped", errors={"overloaded": 2, "broken": 1})
    found = cautions(compare(run(TP8), run(replace(PP8, window_seconds=4.0), load=[cut])))
    assert "The steady window of PP8 is only 4.0 s" in found
    assert "The load of PP8 was stopped early" in found
    assert "3 requests of the load of PP8 failed" in found


def test_a_load_that_stalled_is_said() -> None:
    found = cautions(compare(run(TP8, load=[load(32, 300.0)]), run(PP8, load=[load(32, 250.0)])))
    assert any("counted 300 tokens/s" in each and "printed 578" in each for each in found)
    assert not any("PP8" in each for each in found)


def test_without_any_throughput_it_cannot_tell() -> None:
    comparison = compare(run(Figures()), run(PP8))
    assert comparison.throughput_ratio is None
    assert "the throughput of the baseline is not known" in sentence(comparison)
    assert "The baseline has no steady window: nothing is known of its stages" in cautions(
        comparison
    )


def test_the_log_of_one_replica_is_not_the_output_of_a_server_of_two() -> None:
    two = replace(TP8, facts={**TP8.facts, "dp_size": 2})
    assert compare(run(two), run(PP8)).throughput_ratio is None
    assert compare(run(two), run(two)).throughput_ratio == 1.0
    counted = compare(run(two, load=[load(32, 600.0)]), run(PP8, load=[load(32, 300.0)]))
    assert counted.throughput_ratio == 0.5
    assert ratio(counted, "energy_joules_per_token") == pytest.approx(600.0 / 248.1)


def test_energy_is_not_known_without_the_power_of_all_gpus() -> None:
    some = run(PP8, gpus={**GPUS, "watts": None})
    comparison = compare(run(TP8), some)
    assert comparison.quantities["power_watts"].sides == (2200.0, None)
    assert comparison.quantities["energy_joules_per_token"].candidate is None


def test_a_sum_over_some_gpus_of_a_server_is_not_its_power() -> None:
    watch = Watch()
    places = tuple(StageGpu(0, 0, rank, rank, f"GPU-{rank}", 100 + rank) for rank in range(2))
    watch.fold(ServerFacts("kimi", 0.0, {"pp_size": 1, "tp_size": 2}, "recording"))
    watch.fold(StageMap("kimi", 0.0, places[:1], "recording"))
    for gpu in range(2):
        samples = tuple((float(at), 250.0) for at in range(1, 11))
        watch.fold(RingSamples(gpu, Signal.POWER, 1.0, samples))
    assert server_gpus(watch, "kimi", (0.0, 10.0))["watts"] is None
    watch.fold(StageMap("kimi", 0.0, places, "recording"))
    told = server_gpus(watch, "kimi", (0.0, 10.0))
    assert (told["seen"], told["expected"], told["watts"]) == (2, 2, 500.0)
    assert server_gpus(watch, "kimi", None)["watts"] is None
    assert server_gpus(watch, "other", (0.0, 10.0))["seen"] is None


# --- what was changed --------------------------------------------------------------------------


def test_only_facts_that_differ_are_listed_and_unknown_ones_are_said_to_be() -> None:
    facts = {**PP8.facts, "pp_max_micro_batch_size": None, "cuda_graph_max_bs": 160}
    before = replace(PP8, facts=facts)
    after = replace(PP8, facts={**PP8.facts, "pp_max_micro_batch_size": 4})
    comparison = compare(run(before), run(after))
    changed, one_sided = comparison.changed_facts
    assert (changed.name, changed.baseline, changed.candidate) == (
        "pp_max_micro_batch_size",
        None,
        4,
    )
    assert changed.unknown is None
    assert (one_sided.name, one_sided.unknown) == ("cuda_graph_max_bs", "candidate")
    assert sentence(comparison).startswith(
        "With pp_max_micro_batch_size 4 instead of none, the candidate gives the same throughput"
    )
    text = comparison_text(comparison)
    assert "pp_max_micro_batch_size  none -> 4" in text
    assert "not known of the candidate:\n  cuda_graph_max_bs 160" in text


def test_other_gpus_and_models_are_said() -> None:
    other = {"seen": 4, "expected": 4, "models": ["NVIDIA H200"], "watts": 900.0}
    facts = {**PP8.facts, "served_model_name": "b"}
    found = cautions(
        compare(
            run(replace(PP8, facts={**PP8.facts, "served_model_name": "a"})),
            run(replace(PP8, facts=facts), gpus=other),
        )
    )
    assert found == [
        "They run on 8 and 4 GPUs",
        "The GPUs differ: NVIDIA RTX PRO 6000 against NVIDIA H200",
        "It may be another model: a against b",
    ]


# --- text --------------------------------------------------------------------------------------


@pytest.mark.parametrize("candidate", [PP8, Figures(), replace(PP8, concurrency=8)])
def test_the_text_fits_80_columns_with_and_without_color(candidate: Figures) -> None:
    facts = {**candidate.facts, "served_model_name": "m" * 200, "nnodes": 2}
    comparison = compare(
        run(TP8, load=[load(32, 570.0), load(8, 120.0)]), run(replace(candidate, facts=facts))
    )
    text = comparison_text(comparison)
    assert max(len(line) for line in text.split("\n")) <= 80
    colored = comparison_text(comparison, Paper(color=True))
    assert "\x1b[" in colored
    assert "\x1b" not in text


def test_text_out_of_a_file_moves_no_cursor() -> None:
    facts = {**PP8.facts, "version": "\x1b[2J0.5", "\x1bx": "\r\n"}
    text = comparison_text(compare(run(TP8), run(replace(PP8, facts=facts))))
    assert "\x1b" not in text
    assert "\r" not in text


def test_numbers_of_another_kind_are_not_known() -> None:
    told = report(PP8)
    told["figures"]["log"]["tokens_per_second"] = "fast"
    told["figures"]["gpus"] = [1, 2]
    told["figures"]["slots"]["effective"] = float("nan")
    told["figures"]["concurrency"] = True
    seen = run_of(told)
    assert seen.printed_tokens_per_second is None
    assert seen.watts is seen.effective_microbatches is seen.streams is None


@pytest.mark.parametrize("rate", [float("nan"), -5, "5", True, 10**400])
def test_a_load_whose_tokens_are_no_number_is_left_out_and_named(rate: object) -> None:
    told = report(PP8, load=[load(32, 300.0)])
    told["figures"]["load"][0]["output_tokens_per_second"] = rate
    told["figures"]["facts"]["pp_size"] = "x"
    comparison = compare(run(TP8), run_of(told))
    assert comparison.candidate.loads[0].tokens_per_second is None
    beware = cautions(comparison)[0]
    assert "cannot be true were left out" in beware
    assert "figures.load[0].output_tokens_per_second" in beware
    assert "figures.facts.pp_size" in beware
    assert not any("left out" in each for each in cautions(compare(run(TP8), run(PP8))))


# --- the command -------------------------------------------------------------------------------


def compared(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, dict[str, Any], str]:
    """Exit code, the one object on stdout, stderr."""
    code = main(["compare", *arguments, "--json"])
    printed, said = capsys.readouterr()
    answer = json.loads(printed)
    assert isinstance(answer, dict)
    return code, answer, said


def test_two_recordings_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    code, answer, _ = compared(
        capsys,
        str(RECORDINGS / "healthy.jsonl.gz"),
        str(RECORDINGS / "thundering_herd.jsonl.gz"),
    )
    assert code == EXIT_COMPARED
    assert answer["compared"] is True
    figures = answer["figures"]
    assert figures["output_tokens_per_second"]["baseline"] == pytest.approx(34812 / 40.0)
    assert figures["single_stream_tokens_per_second"]["baseline"] == 28.93
    assert figures["effective_microbatches"]["candidate"] == pytest.approx(1.0)
    assert figures["occupancy_ratio"]["difference"] == pytest.approx(-0.83, abs=0.01)
    assert figures["power_watts"]["baseline"] == pytest.approx(2188, abs=1)
    assert figures["energy_joules_per_token"]["ratio"] > 3.0
    assert answer["baseline"]["verdict"] == "healthy"
    assert answer["candidate"]["verdict"] == "thundering_herd"


def test_a_recording_is_compared_with_the_report_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = str(RECORDINGS / "healthy.jsonl.gz")
    main(["diagnose", "--recording", healthy, "--json"])
    printed = capsys.readouterr().out
    of_report = written(tmp_path, "healthy.json", printed)
    pretty = written(tmp_path, "pretty.json", json.dumps(json.loads(printed), indent=2))
    packed = tmp_path / "healthy.json.gz"
    packed.write_bytes(gzip.compress(printed.encode()))
    for sides in ((healthy, of_report), (pretty, str(packed))):
        code, answer, _ = compared(capsys, *sides)
        assert code == EXIT_COMPARED
        assert answer["figures"]["output_tokens_per_second"]["ratio"] == 1.0
        assert answer["facts"] == []
        assert "the same throughput" in answer["summary"]


def test_text_is_printed_and_other_loads_exit_as_undecided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = written(tmp_path, "tp8.json", report(TP8))
    after = written(tmp_path, "pp8.json", report(replace(PP8, concurrency=8)))
    assert main(["compare", before, after]) == EXIT_CANNOT_TELL
    assert capsys.readouterr().out.startswith("cannot tell")
    code, answer, _ = compared(capsys, before, after)
    assert code == EXIT_CANNOT_TELL
    assert answer["compared"] is False


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"error": "cannot load http://x"}', "error of a run that failed: cannot load http://x"),
        ("not JSON\n", "neither a recording nor a report"),
        ("", "neither a recording nor a report"),
        ("[" * 100_000, "neither a recording nor a report"),
        ('{"verdict": "healthy"}', "neither a recording nor a report"),
        ('{"verdict": "splendid", "figures": {"log": {}}}', "neither a recording nor a report"),
        ('{"verdict": [1], "figures": {"log": {}}}', "neither a recording nor a report"),
        ("[1, 2]", "neither a recording nor a report"),
        ('{"type": "header", "format": "other", "version": 1}', "no recording of version 1"),
        ('{"a": "' + "x" * (1 << 21) + '"}', "longer than"),
    ],
    ids=["error", "prose", "empty", "deep", "half", "verdict", "list", "array", "header", "long"],
)
def test_a_file_that_cannot_be_compared_is_named_with_the_reason(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = written(tmp_path, "good.json", report(TP8)), written(tmp_path, "bad.json", text)
    for sides in ((good, bad), (bad, good)):
        code, answer, said = compared(capsys, *sides)
        assert code == EXIT_ERROR
        assert bad in answer["error"]
        assert expected in answer["error"]
        assert "Traceback" not in said


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer, _ = compared(capsys, str(tmp_path / "none.json"), str(tmp_path))
    assert code == EXIT_ERROR
    assert answer["error"] == f"cannot read {tmp_path / 'none.json'}: No such file or directory"


# --- diagnose --baseline -----------------------------------------------------------------------


def test_a_diagnosis_is_compared_with_a_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline = written(tmp_path, "tp8.json", report(TP8))
    recording = str(RECORDINGS / "thundering_herd.jsonl.gz")
    arguments = ["diagnose", "--recording", recording, "--baseline", baseline]
    assert main([*arguments, "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert list(answer)[-1] == "comparison"
    given = compare(run(TP8), run_of(answer))
    assert answer["comparison"] == json.loads(json.dumps(comparison_object(given)))
    assert main(arguments) == 1
    text = capsys.readouterr().out
    assert text.startswith("thundering herd")
    assert "PP8 gives 0.21 of TP8's throughput at 32 streams" in text


def test_a_wrong_baseline_is_named_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.json"
    arguments = ["--url", "http://127.0.0.1:1", "--baseline", str(missing), "--json"]
    assert main(["diagnose", *arguments]) == EXIT_ERROR
    assert json.loads(capsys.readouterr().out)["error"].startswith(f"cannot read {missing}")
