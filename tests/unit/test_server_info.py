"""What of an answer is kept: known facts within their bounds, nothing secret."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.sglang.known_facts import FACTS, is_usable
from exporter.sglang.server_args import ALLOWED
from exporter.sglang.server_info import NotServerInfoError, parse_server_info
from tests.journal_export import DATA
from tests.sglang_server import API_KEY, answer


def read(body: Any, *, same_node: bool = True) -> dict[str, Any]:
    return parse_server_info(json.dumps(body).encode(), same_node=same_node)


def test_the_line_and_the_endpoint_may_tell_the_same_facts_but_for_the_version() -> None:
    assert FACTS.keys() - ALLOWED.keys() == {"version"}


def test_a_real_server_of_four_stages_tells_what_its_scheduler_settled_on() -> None:
    """Its arguments leave the cap and the running requests to SGLang; its scheduler does not."""
    body = (DATA / "sglang_server_info" / "pp4_i41.json").read_bytes()
    assert json.loads(body)["pp_max_micro_batch_size"] is None
    assert json.loads(body)["max_running_requests"] is None
    assert parse_server_info(body, same_node=True) == {
        "version": "0.5.23",
        "model_path": "/models/tiny",
        "served_model_name": "/models/tiny",
        "host": "127.0.0.1",
        "port": 31999,
        "nnodes": 1,
        "node_rank": 0,
        "pp_size": 4,
        "tp_size": 1,
        "dp_size": 1,
        "ep_size": 1,
        "dcp_size": 1,
        "attn_dp_size": 1,
        "attn_cp_size": 1,
        "moe_dp_size": 1,
        "base_gpu_id": 0,
        "gpu_id_step": 1,
        "pp_async_batch_depth": 0,
        "pp_max_micro_batch_size": 512,
        "max_running_requests": 2048,
        "decode_log_interval": 41,
        "disable_cuda_graph": True,
        "device": "cpu",
        "disaggregation_mode": "null",
        "enable_dp_attention": False,
        "enable_dynamic_chunking": False,
        "enable_metrics": False,
        "enable_metrics_for_all_schedulers": False,
        "sleep_on_idle": False,
    }


def test_what_was_asked_for_is_not_what_the_scheduler_settled_on() -> None:
    """Before `effective_max_running_requests_per_dp` the log's capacity line knows better."""
    body = answer()
    del body["internal_states"][0]["effective_max_running_requests_per_dp"]
    assert body["max_running_requests"] == 256
    assert "max_running_requests" not in read(body)


def test_the_older_name_of_the_micro_batch_cap_is_settled_too() -> None:
    body = {"pp_size": 4, "max_micro_batch_size": None}
    assert read(body | {"internal_states": [{"max_micro_batch_size": 12}]}) == {
        "pp_size": 4,
        "max_micro_batch_size": 12,
    }


def test_null_is_not_known() -> None:
    assert read({"pp_size": 4, "dp_size": None, "version": None}) == {"pp_size": 4}


@pytest.mark.parametrize("states", [None, [], [None], {}, "x", [[]], 3], ids=repr)
def test_states_that_are_none_cost_only_themselves(states: Any) -> None:
    assert read({"pp_size": 4, "internal_states": states}) == {"pp_size": 4}


def test_another_node_does_not_tell_where_this_ones_ranks_run() -> None:
    nodes = answer(nnodes=2, node_rank=0)
    assert read(nodes)["node_rank"] == 0
    facts = read(nodes, same_node=False)
    assert facts["nnodes"] == 2
    assert facts.keys().isdisjoint({"node_rank", "base_gpu_id", "gpu_id_step"})
    assert read(answer(), same_node=False)["base_gpu_id"] == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pp_size", 65),
        ("pp_size", True),
        ("pp_size", 8.0),
        ("pp_size", "8"),
        ("dp_size", -1),
        ("port", 10**15),
        ("enable_metrics", 1),
        ("model_path", ["a"]),
        ("model_path", "x" * 257),
        ("model_path", "a\nb"),
        ("model_path", f"s3://user:{API_KEY}@host/kimi"),
        ("model_path", f"/models/{API_KEY}/kimi"),
        ("served_model_name", "kimi?token=abc"),
        ("version", "0.5.23\u2028"),
    ],
)
def test_a_value_beyond_its_kind_or_bounds_costs_itself(name: str, value: Any) -> None:
    facts = read(answer(**{name: value}) | {name: value})
    assert name not in facts
    assert facts["decode_log_interval"] == 41


@pytest.mark.parametrize(
    "place",
    [
        {"admin_api_key": "hush-hush"},
        {"nested": [{"deep": {"password": ["x", "hush-hush"]}}]},
        {"internal_states": [{"hf_token": "hush-hush"}]},
    ],
    ids=["argument", "nested", "state"],
)
def test_a_text_that_holds_a_secret_from_anywhere_is_not_kept(place: dict[str, Any]) -> None:
    facts = read({"pp_size": 4, "model_path": "/m/hush-hush"} | place)
    assert facts == {"pp_size": 4}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(API_KEY),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | st.sampled_from(sorted(FACTS)), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from([*sorted(FACTS), "internal_states", "api_key"]), JSON_VALUES, max_size=12
    )
)
def test_whatever_the_answer_only_usable_facts_come_out(body: dict[str, Any]) -> None:
    body["api_key"] = API_KEY
    try:
        facts = read(body)
    except NotServerInfoError:
        return
    assert all(is_usable(name, value) for name, value in facts.items())
    assert API_KEY not in repr(facts)


@given(st.binary())
def test_whatever_the_bytes_it_is_facts_or_one_error(body: bytes) -> None:
    with pytest.raises(NotServerInfoError):
        parse_server_info(body, same_node=True)
