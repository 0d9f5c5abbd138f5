"""`server_args=` in both spellings: allow-listed values only, whatever the rest holds."""

from __future__ import annotations

import pytest

from exporter.sglang.server_args import (
    ALLOWED,
    MAX_TEXT_CHARS,
    parse_server_args,
    render_server_args,
)
from tests.journal_export import REAL_JOURNALS, real_journal

KEY = "sk-hidden-4711"


def call_form(**arguments: object) -> str:
    return "ServerArgs(" + ", ".join(f"{k}={v!r}" for k, v in arguments.items()) + ")"


def dict_form(**arguments: object) -> str:
    return repr(arguments)


both_spellings = pytest.mark.parametrize("spell", [call_form, dict_form], ids=["call", "dict"])


@both_spellings
def test_allowed_arguments_are_read(spell):
    text = spell(
        model_path="/models/kimi",
        tokenizer_path="/models/kimi",
        pp_size=8,
        tp_size=1,
        max_running_requests=None,
        mem_fraction_static=0.87,
        enable_metrics=True,
        cuda_graph_bs=[1, 2, 4],
        decode_log_interval=41,
    )
    assert parse_server_args(text) == {
        "model_path": "/models/kimi",
        "pp_size": 8,
        "tp_size": 1,
        "max_running_requests": None,
        "enable_metrics": True,
        "decode_log_interval": 41,
    }


NASTY_KEYS = {
    "plain": {"api_key": KEY},
    "single_quote": {"api_key": f"it's {KEY}"},
    "both_quotes": {"api_key": f'it\'s "{KEY}"'},
    "closes_the_string": {"api_key": f"', pp_size=9, model_path='{KEY}"},
    "closes_the_dict_string": {"api_key": f"', 'pp_size': 9, 'model_path': '{KEY}"},
    "names_a_field": {"api_key": f"{KEY}, pp_size=9"},
    "brackets": {"api_key": f"({KEY}[{{"},
    "backslash_at_the_end": {"api_key": f"{KEY}\\"},
    "backslash_quote": {"api_key": f"\\'{KEY}\\\""},
    "newline": {"api_key": f"{KEY}\nserver_args={{'pp_size': 9}}"},
    "admin": {"admin_api_key": KEY},
    "password": {"ssl_keyfile_password": KEY},
    "repeated_in_the_model": {"api_key": KEY, "model_path": f"/models/{KEY}/kimi"},
    "served_as_the_key": {"api_key": KEY, "served_model_name": KEY},
    "written_into_the_model": {"model_path": f"/models/x?api_key={KEY}"},
    "login_in_the_model": {"model_path": f"s3://user:{KEY}@host/models"},
    "token_in_the_model": {"model_path": f"https://host/m?token={KEY}"},
    "in_a_list": {"api_key": [KEY, KEY], "served_model_name": f"a {KEY}"},
    "in_a_dict": {"extra_secrets": {"a": KEY}, "served_model_name": f"a {KEY}"},
}


@both_spellings
@pytest.mark.parametrize("arguments", NASTY_KEYS.values(), ids=NASTY_KEYS.keys())
def test_a_key_never_leaves(spell, arguments):
    facts = parse_server_args(spell(tp_size=2, **arguments, pp_size=4))
    assert facts is not None
    assert (facts["tp_size"], facts["pp_size"]) == (2, 4)
    assert KEY not in repr(facts)
    assert KEY not in render_server_args(facts)


@both_spellings
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pp_size", 65),
        ("pp_size", 0),
        ("pp_size", True),
        ("pp_size", "8"),
        ("pp_size", 8.0),
        ("pp_size", 10**30),
        ("pp_size", [8]),
        ("tp_size", -1),
        ("enable_metrics", 1),
        ("model_path", "x" * (MAX_TEXT_CHARS + 1)),
        ("model_path", "a\nb"),
        ("model_path", "a\x1b[31mb"),
        ("model_path", "a\u2028b"),
        ("served_model_name", ["a", "b"]),
    ],
)
def test_a_value_of_another_kind_is_not_known(spell, name, value):
    facts = parse_server_args(spell(nnodes=1, **{name: value}))
    assert facts == {"nnodes": 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ServerArgs(",
        "ServerArgs()",
        "{",
        "{}",
        "None",
        "ServerArgs(pp_size=8",
        "ServerArgs(pp_size=8}",
        "ServerArgs(pp_size=8) and more",
        "ServerArgs(pp_size=8, pp_size=9)",
        "ServerArgs(pp_size=8,tp_size=1)",
        "ServerArgs(pp_size=8, model_path='half)",
        "ServerArgs(a=(1, 2], pp_size=8)",
        "{'pp_size': 8, 'model_path': \"half}",
        "{'pp_size': 8}{'tp_size': 9}",
        "{pp_size: 8}",
        "{'pp_size' : 8}",
        "{'pp_size': 8, 'pp_size': 9}",
        "OtherArgs(pp_size=8)",
        "{'mem_fraction_static': 0.9}",
        "{'x': '" + "y" * 300_000 + "', 'pp_size': 8}",
    ],
)
def test_what_is_no_complete_argument_list_tells_nothing(text):
    assert parse_server_args(text) is None


def test_objects_among_the_arguments_are_stepped_over():
    text = "ServerArgs(a=<object at 0x7f>, b=Config(x='),', y={'pp_size': 9}), pp_size=4)"
    assert parse_server_args(text) == {"pp_size": 4}


def test_no_allowed_field_is_named_like_a_secret():
    assert not [name for name in ALLOWED if "key" in name or "password" in name or "token" in name]


@both_spellings
def test_rendered_arguments_read_back_the_same(spell):
    facts = parse_server_args(
        spell(model_path='it\'s "x"', pp_size=8, enable_metrics=False, max_running_requests=None)
    )
    assert facts is not None
    text = render_server_args(facts)
    assert parse_server_args(text.removeprefix("server_args=")) == facts


@pytest.mark.parametrize(
    ("journal", "pp_size", "interval"),
    [("pp8_default", 8, 40), ("pp4_mmb8_i41", 4, 41), ("pp4_burst_i7_iters", 4, 7)],
)
def test_real_servers_arguments_are_read(journal, pp_size, interval):
    assert journal in REAL_JOURNALS
    texts = [
        entry["MESSAGE"].decode().partition("server_args=")[2]
        for entry in real_journal(journal)
        if b"] server_args=" in entry["MESSAGE"]
    ]
    (facts,) = map(parse_server_args, texts)
    assert facts is not None
    assert (facts["pp_size"], facts["tp_size"], facts["dp_size"]) == (pp_size, 1, 1)
    assert facts["decode_log_interval"] == interval
    assert facts["model_path"] == "/srv/sglang/model"
    assert facts["max_running_requests"] is None
    assert facts.keys() <= ALLOWED.keys()
