"""Who runs where: titles in any order, restarts, several servers, configuration and formula."""

from __future__ import annotations

import pytest

from exporter.config import ServerConfig
from exporter.records import (
    Batch,
    FactValue,
    GpuIdentity,
    GpuProcess,
    GpuProcesses,
    Mode,
    ServerFacts,
    StageGpu,
    StageMap,
    XidError,
)
from exporter.sglang.rank_formula import place_ranks
from exporter.stage_map import StageMapper

NOW = 1_790_000_000.0
PP8: dict[str, FactValue] = {"pp_size": 8, "tp_size": 1}


def gpu(number: int, model: str = "NVIDIA H200") -> GpuIdentity:
    return GpuIdentity(number, f"GPU-{number:08d}", model)


def scheduler(
    number: int, pid: int, ranks: str = "", *, memory: int | None = 1 << 30, parent: int | None = 1
) -> GpuProcess:
    return GpuProcess(number, pid, "sglang::scheduler" + ranks, memory, parent)


def seen(*processes: GpuProcess, at: float = NOW, gpus: range = range(8)) -> GpuProcesses:
    return GpuProcesses(at, tuple(gpus), processes)


def batch(server: str, pid: int, at: float = NOW) -> Batch:
    return Batch(server, at, Mode.DECODE, 0, 0, 0, pid, 4, verified=True)


def launch(server: str, at: float, facts: dict[str, FactValue] | None = None) -> ServerFacts:
    return ServerFacts(server, at, facts or PP8, "server_args", new_launch=True)


def places(stage_map: StageMap) -> dict[tuple[int, int, int], tuple[int, int | None]]:
    return {(s.dp_rank, s.pp_rank, s.tp_rank): (s.gpu, s.pid) for s in stage_map.stages}


@pytest.fixture
def mapper() -> StageMapper:
    """One server, eight equal GPUs."""
    mapper = StageMapper([ServerConfig("kimi")])
    for number in range(8):
        assert list(mapper.fold(gpu(number))) == []
    return mapper


def test_titles_map_ranks_to_gpus_with_uuid_and_pid(mapper: StageMapper) -> None:
    (stage_map,) = mapper.fold(seen(*(scheduler(7 - pp, 100 + pp, f"_PP{pp}") for pp in range(8))))
    assert stage_map.server == "kimi"
    assert stage_map.mapped_at == NOW
    assert stage_map.origin == "process_title"
    assert stage_map.stages[0] == StageGpu(0, 0, 0, 7, "GPU-00000007", 100)
    assert places(stage_map) == {(0, pp, 0): (7 - pp, 100 + pp) for pp in range(8)}


@pytest.mark.parametrize(
    ("title", "ranks"),
    [
        ("_PP3_TP1", (0, 3, 1)),
        ("_TP1_PP3", (0, 3, 1)),
        ("_DP2_PP3_ATTN_CP0_MOE_DP7_TP1_EP1", (2, 3, 1)),
        ("_DP1_TP4_EP4", (1, 0, 4)),
        ("", (0, 0, 0)),
    ],
)
def test_ranks_are_found_by_name_in_any_order(
    title: str, ranks: tuple[int, int, int], mapper: StageMapper
) -> None:
    (stage_map,) = mapper.fold(seen(scheduler(5, 100, title)))
    assert places(stage_map) == {ranks: (5, 100)}


def test_a_map_is_told_only_when_it_changed(mapper: StageMapper) -> None:
    assert len(mapper.fold(seen(scheduler(0, 100, "_PP0")))) == 1
    assert list(mapper.fold(seen(scheduler(0, 100, "_PP0", memory=2 << 30), at=NOW + 5))) == []
    assert list(mapper.fold(batch("kimi", 100, NOW + 6))) == []
    assert list(mapper.fold(gpu(0))) == []
    assert list(mapper.fold(XidError(0, NOW, 31))) == []
    (stage_map,) = mapper.fold(seen(scheduler(1, 100, "_PP0"), at=NOW + 10))
    assert places(stage_map) == {(0, 0, 0): (1, 100)}
    assert stage_map.mapped_at == NOW + 10


def test_other_processes_are_no_stage(mapper: StageMapper) -> None:
    others = ("python3", "sglang::detokenizer", "sglang::schedulerPP3", "/bin/sglang::scheduler")
    processes = [GpuProcess(0, 200 + i, title, 1) for i, title in enumerate(others)]
    processes.append(GpuProcess(0, 300, None, 1))
    assert list(mapper.fold(seen(*processes))) == []


def test_a_rank_beyond_any_server_is_no_stage(mapper: StageMapper) -> None:
    assert list(mapper.fold(seen(scheduler(0, 100, "_PP64")))) == []
    assert list(mapper.fold(seen(scheduler(0, 100, "_PP9999")))) == []


def test_a_process_on_several_gpus_belongs_where_it_holds_most_memory(mapper: StageMapper) -> None:
    (stage_map,) = mapper.fold(
        seen(
            scheduler(0, 101, "_PP1", memory=500 << 20),
            scheduler(1, 101, "_PP1", memory=90 << 30),
            scheduler(2, 101, "_PP1", memory=None),
        )
    )
    assert places(stage_map) == {(0, 1, 0): (1, 101)}


def test_two_stages_may_share_a_gpu(mapper: StageMapper) -> None:
    (stage_map,) = mapper.fold(seen(scheduler(2, 100, "_PP0_TP1"), scheduler(2, 101, "_PP1_TP0")))
    assert places(stage_map) == {(0, 0, 1): (2, 100), (0, 1, 0): (2, 101)}


def test_a_rank_claimed_by_two_processes_is_left_out(mapper: StageMapper) -> None:
    (stage_map,) = mapper.fold(
        seen(
            scheduler(0, 100, "_PP0"),
            scheduler(1, 101, "_PP1", parent=1),
            scheduler(1, 201, "_PP1", parent=2),
        )
    )
    assert places(stage_map) == {(0, 0, 0): (0, 100)}


def test_a_gpu_that_did_not_answer_keeps_its_processes(mapper: StageMapper) -> None:
    mapper.fold(seen(scheduler(0, 100, "_PP0"), scheduler(1, 101, "_PP1")))
    assert list(mapper.fold(seen(scheduler(0, 100, "_PP0"), at=NOW + 5, gpus=range(1)))) == []


def test_a_title_that_could_not_be_read_once_is_remembered(mapper: StageMapper) -> None:
    mapper.fold(seen(scheduler(0, 100, "_PP0")))
    assert list(mapper.fold(seen(GpuProcess(0, 100, None, 1 << 30, 1), at=NOW + 5))) == []


def test_when_the_server_is_gone_its_map_is_empty(mapper: StageMapper) -> None:
    mapper.fold(launch("kimi", NOW - 60))
    mapper.fold(seen(*(scheduler(pp, 100 + pp, f"_PP{pp}") for pp in range(8))))
    (stage_map,) = mapper.fold(seen(at=NOW + 5))
    assert stage_map.stages == ()


# --- restarts ---


def test_old_and_new_processes_of_a_restart_never_mix(mapper: StageMapper) -> None:
    old = [scheduler(pp, 100 + pp, f"_PP{pp}") for pp in range(4)]
    new = [scheduler(3 - pp, 200 + pp, f"_PP{pp}", parent=2) for pp in range(4)]
    mapper.fold(seen(*old))
    mapper.fold(batch("kimi", 100, NOW + 1))
    (gone,) = mapper.fold(launch("kimi", NOW + 10, {"tp_size": None}))
    assert gone.stages == ()
    # The old ones take their time to die, while the new ones appear one by one.
    assert list(mapper.fold(seen(*old, at=NOW + 11))) == []
    assert list(mapper.fold(batch("kimi", 101, NOW + 11))) == []
    (first,) = mapper.fold(seen(*old, new[0], at=NOW + 15))
    assert places(first) == {(0, 0, 0): (3, 200)}
    (rest,) = mapper.fold(seen(*old[2:], *new, at=NOW + 20))
    assert places(rest) == {(0, pp, 0): (3 - pp, 200 + pp) for pp in range(4)}
    assert list(mapper.fold(seen(*new, at=NOW + 25))) == []


def test_facts_read_long_after_do_not_retire_the_processes_they_speak_of(
    mapper: StageMapper,
) -> None:
    processes = [scheduler(pp, 100 + pp, f"_PP{pp}") for pp in range(8)]
    (before,) = mapper.fold(seen(*processes))
    (after,) = mapper.fold(launch("kimi", NOW - 86_400))
    assert places(after) == places(before)
    assert list(mapper.fold(seen(*processes, at=NOW + 5))) == []


def test_a_pid_used_again_after_it_was_gone_is_a_new_process(mapper: StageMapper) -> None:
    mapper.fold(seen(scheduler(0, 100, "_PP0")))
    mapper.fold(launch("kimi", NOW + 1, {"tp_size": None}))
    mapper.fold(seen(at=NOW + 5))
    (stage_map,) = mapper.fold(seen(scheduler(4, 100, "_PP0"), at=NOW + 10))
    assert places(stage_map) == {(0, 0, 0): (4, 100)}


# --- several servers ---


def test_servers_are_told_apart_by_who_writes_to_their_logs() -> None:
    mapper = StageMapper([ServerConfig("a"), ServerConfig("b")])
    processes = seen(
        scheduler(0, 100, "_PP0_TP0", parent=10),
        scheduler(1, 101, "_PP0_TP1", parent=10),
        scheduler(2, 200, "_PP0_TP0", parent=20),
        scheduler(3, 201, "_PP0_TP1", parent=20),
    )
    assert list(mapper.fold(processes)) == []
    (of_a,) = mapper.fold(batch("a", 100))
    assert of_a.server == "a"
    # Rank 1 prints nothing; it is known by its parent.
    assert places(of_a) == {(0, 0, 0): (0, 100), (0, 0, 1): (1, 101)}
    (of_b,) = mapper.fold(batch("b", 200))
    assert places(of_b) == {(0, 0, 0): (2, 200), (0, 0, 1): (3, 201)}


def test_without_parents_only_the_writers_themselves_are_known() -> None:
    mapper = StageMapper([ServerConfig("a"), ServerConfig("b")])
    mapper.fold(
        seen(scheduler(0, 100, "_PP0", parent=None), scheduler(1, 101, "_PP1", parent=None))
    )
    (of_a,) = mapper.fold(batch("a", 101))
    assert places(of_a) == {(0, 1, 0): (1, 101)}


def test_a_server_not_followed_does_not_mix_in_once_the_followed_one_has_written(
    mapper: StageMapper,
) -> None:
    mapper.fold(seen(scheduler(0, 100, "_PP0", parent=10), scheduler(1, 201, "_PP1", parent=20)))
    (stage_map,) = mapper.fold(batch("kimi", 100))
    assert places(stage_map) == {(0, 0, 0): (0, 100)}


# --- configuration ---


def test_configuration_wins_over_titles_and_names_gpus_by_index_or_uuid() -> None:
    stages = {0: ("6", "7"), 1: ("GPU-00000001", "gpu-00000000")}
    mapper = StageMapper([ServerConfig("kimi", stages=stages)])
    for number in range(8):
        mapper.fold(gpu(number))
    (stage_map,) = mapper.fold(
        seen(scheduler(6, 100, "_PP0_TP0"), scheduler(3, 101, "_PP1_TP0"), at=NOW)
    )
    assert stage_map.origin == "configuration"
    assert places(stage_map) == {
        (0, 0, 0): (6, 100),  # the title agrees: its PID is known
        (0, 0, 1): (7, None),
        (0, 1, 0): (1, None),
        (0, 1, 1): (0, None),
    }


def test_a_configured_gpu_that_does_not_exist_is_left_out() -> None:
    mapper = StageMapper([ServerConfig("kimi", stages={0: ("0",), 1: ("12",), 2: ("GPU-no",)})])
    mapper.fold(gpu(0))
    (stage_map,) = mapper.fold(seen())
    assert places(stage_map) == {(0, 0, 0): (0, None)}


# --- formula ---


def test_without_titles_the_formula_places_the_ranks(mapper: StageMapper) -> None:
    (stage_map,) = mapper.fold(ServerFacts("kimi", NOW, PP8, "server_args"))
    assert stage_map.origin == "formula"
    assert places(stage_map) == {(0, pp, 0): (pp, None) for pp in range(8)}
    (titled,) = mapper.fold(seen(scheduler(4, 100, "_PP0")))
    assert titled.origin == "process_title"


def test_the_formula_is_not_used_with_gpus_of_different_models(mapper: StageMapper) -> None:
    mapper.fold(gpu(0, "NVIDIA A100"))
    assert list(mapper.fold(ServerFacts("kimi", NOW, PP8, "server_args"))) == []


def test_the_formula_is_not_used_when_it_names_a_gpu_that_is_not_there(
    mapper: StageMapper,
) -> None:
    facts: dict[str, FactValue] = {**PP8, "base_gpu_id": 4}
    assert list(mapper.fold(ServerFacts("kimi", NOW, facts, "server_args"))) == []


def test_titles_without_ranks_of_many_processes_leave_it_to_the_formula(
    mapper: StageMapper,
) -> None:
    facts: dict[str, FactValue] = {"tp_size": 8}
    mapper.fold(seen(*(scheduler(number, 100 + number) for number in range(8))))
    (stage_map,) = mapper.fold(ServerFacts("kimi", NOW, facts, "server_args"))
    assert stage_map.origin == "formula"
    assert places(stage_map)[0, 0, 5] == (5, None)


def ordinals(**facts: FactValue) -> dict[tuple[int, int, int], int]:
    return {(p.dp_rank, p.pp_rank, p.tp_rank): p.ordinal for p in place_ranks(facts)}


def test_the_formula_places_tensor_ranks_side_by_side() -> None:
    assert ordinals(tp_size=2, pp_size=4) == {
        (0, pp, tp): 2 * pp + tp for pp in range(4) for tp in range(2)
    }


def test_the_gpu_step_does_not_multiply_the_pipeline_term() -> None:
    assert ordinals(tp_size=1, pp_size=4, gpu_id_step=2) == {(0, pp, 0): pp for pp in range(4)}
    assert ordinals(tp_size=2, pp_size=2, gpu_id_step=2) == {
        (0, 0, 0): 0,
        (0, 0, 1): 2,
        (0, 1, 0): 2,  # shared with stage 0, as SGLang does it
        (0, 1, 1): 4,
    }


def test_a_node_has_its_own_stages_or_its_share_of_one() -> None:
    assert ordinals(tp_size=8, pp_size=2, nnodes=2, node_rank=1) == {
        (0, 1, tp): tp for tp in range(8)
    }
    assert ordinals(tp_size=8, pp_size=2, nnodes=4, node_rank=1) == {
        (0, 0, tp): tp - 4 for tp in range(4, 8)
    }
    assert ordinals(tp_size=2, pp_size=4, nnodes=2, node_rank=1) == {
        (0, 2, 0): 0,
        (0, 2, 1): 1,
        (0, 3, 0): 2,
        (0, 3, 1): 3,
    }


def test_replicas_follow_each_other_and_attention_replicas_share_one_engine() -> None:
    assert ordinals(tp_size=2, pp_size=2, dp_size=2)[1, 1, 1] == 7
    attention = ordinals(tp_size=8, dp_size=2, enable_dp_attention=True)
    assert attention == {(tp // 4, 0, tp): tp for tp in range(8)}


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"pp_size": 8},
        {"tp_size": None},
        {"tp_size": "8"},
        {"tp_size": True},
        {"tp_size": -1},
        {"tp_size": 1, "pp_size": 0},
        {"tp_size": 1, "nnodes": 0},
        {"tp_size": 10**9, "pp_size": 10**9},
        {"tp_size": 1, "nnodes": 8},
        {"tp_size": 1, "dp_size": 2, "nnodes": 2},
    ],
)
def test_facts_that_do_not_tell_place_nobody(facts: dict[str, FactValue]) -> None:
    assert place_ranks(facts) == ()


def test_a_new_launch_is_told_its_map_even_where_nothing_moved(mapper: StageMapper) -> None:
    """The pipeline model drops the map of the launch before."""
    facts = ServerFacts("kimi", NOW, PP8, "server_args")
    (first,) = mapper.fold(facts)
    (second,) = mapper.fold(launch("kimi", NOW + 60))
    assert places(second) == places(first)


def test_a_map_that_a_recording_gives_is_not_guessed_anew(mapper: StageMapper) -> None:
    given = StageMap("kimi", NOW, (StageGpu(0, 0, 0, 7),), "recording")
    assert list(mapper.fold(given)) == []
    assert list(mapper.fold(launch("kimi", NOW))) == []
    (other,) = mapper.fold(launch("other", NOW))
    assert other.origin == "formula"
