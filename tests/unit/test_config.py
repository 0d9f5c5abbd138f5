"""The configuration: what it accepts, and that every mistake is named with its place."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from exporter.config import (
    Config,
    ConfigError,
    ServerConfig,
    build,
    check,
    load,
    parse,
    parse_listen,
)
from exporter.settings import SERVER_SETTINGS, SETTINGS, Setting

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy" / "exporter.yaml"
DOCS = ROOT / "docs" / "configuration.md"


def test_every_setting_reaches_the_configuration() -> None:
    config = parse(
        """
        servers:
          - name: kimi
            unit: sglang.service
            url: http://127.0.0.1:30000/
            token_file: /etc/kimi.token
            facts: {pp_size: 8, decode_log_interval: 41, sleep_on_idle: true, version: 0.5.23}
            stages: {0: [GPU-5a1b, 1], 1: [2, 3]}
          - container: other
          - identifier: third
          - files: [/var/log/pods/*/sglang/*.log]
        listen: "[::1]:9999"
        journal_directory: /var/log/journal/remote
        state_file: /tmp/positions.json
        from_start: true
        nvml: false
        """
    )
    assert config == Config(
        servers=(
            ServerConfig(
                "kimi",
                unit="sglang.service",
                url="http://127.0.0.1:30000",
                token_file=Path("/etc/kimi.token"),
                facts={
                    "pp_size": 8,
                    "decode_log_interval": 41,
                    "sleep_on_idle": True,
                    "version": "0.5.23",
                },
                stages={0: ("GPU-5a1b", "1"), 1: ("2", "3")},
            ),
            ServerConfig("other", container="other"),
            ServerConfig("third", identifier="third"),
            ServerConfig("sglang", files=("/var/log/pods/*/sglang/*.log",)),
        ),
        listen_host="::1",
        listen_port=9999,
        journal_directory=Path("/var/log/journal/remote"),
        state_file=Path("/tmp/positions.json"),  # noqa: S108  # only compared
        from_start=True,
        nvml=False,
    )


def test_no_servers_means_sglangs_own_unit() -> None:
    assert parse("nvml: true") == Config((ServerConfig("sglang", unit="sglang.service"),))


def test_a_key_with_nothing_behind_it_is_left_out() -> None:
    assert parse("state_file:\nservers: [{unit: a.service, url: }]").state_file is None


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("{unit: kimi.service}", "kimi"),
        ("{unit: kimi}", "kimi"),
        ("{unit: sglang@8.service}", "sglang@8"),
        ("{container: box}", "box"),
        ("{identifier: cat}", "cat"),
        ("{files: [a.log]}", "sglang"),
        ("{stdin: true}", "sglang"),
    ],
)
def test_a_server_without_a_name_is_called_after_its_input(entry: str, name: str) -> None:
    assert parse(f"servers: [{entry}]").servers[0].name == name


def test_a_unit_without_a_type_is_a_service() -> None:
    assert parse("servers: [{unit: kimi}]").servers[0].unit == "kimi.service"


def test_all_mistakes_are_named_at_once_each_with_its_place() -> None:
    mistakes = check(
        """
        servers:
          - {name: a, unit: a.service, stage: b}
          - name: "two\\nlines"
            files: [1, ok.log]
            stages: {0: [x], 99: [1], 2: 3, 4: [5, 5]}
          - {name: c}
          - {name: d, unit: d.service, container: d}
        listen: nowhere
        nvml: "yes"
        journal_dir: /x
        unit: sglang.service
        """
    )
    assert mistakes == [
        "listen: 'nowhere' is not ADDRESS:PORT, [IPV6]:PORT or :PORT, with a port from 0 to 65535",
        "nvml: 'yes' is not true or false",
        "journal_dir: unknown setting; did you mean journal_directory?",
        "unit: unknown setting; it belongs to an entry of `servers`",
        "servers[0].stage: unknown setting; did you mean stages?",
        "servers[1].name: 'two\\nlines' is not printable text without spaces around it",
        "servers[1].files[0]: 1 is not a path",
        "servers[1].stages.0[0]: 'x' is neither an NVML index nor a UUID that begins with GPU-",
        "servers[1].stages: 99 is not a pp_rank from 0 to 63",
        "servers[1].stages.2: 3 is not a list of GPUs, in tp_rank order",
        "servers[1].stages.4: a GPU is named twice in one stage",
        "servers[2]: no input is given; give exactly one of unit, container, identifier, files, stdin",
        "servers[3]: unit and container are given; give exactly one of unit, container, identifier,"
        " files, stdin",
    ]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("", "the configuration is empty; write at least `servers:`, or give no file"),
        ("# only a comment", "the configuration is empty"),
        ("- a", "the configuration: ['a'] is not a mapping of settings to values"),
        ("servers: []", "servers: [] is not a list of servers"),
        ("servers: [1]", "servers[0]: 1 is not a mapping"),
        ("listen: 10810", "listen: 10810 is not ADDRESS:PORT"),
        ("servers: [{unit: a/b}]", "servers[0].unit: 'a/b' is not the name of a systemd unit"),
        ("servers: [{name: 8, unit: a}]", "servers[0].name: 8 is not printable text"),
        ("servers: [{name: on, unit: a}]", "servers[0].name: True is not printable text"),
        (f"servers: [{{name: {'n' * 65}, unit: a}}]", "of at most 64 characters"),
        (f"servers: [{{unit: {'u' * 80}}}]", "servers[0].name: the default"),
        ("servers: [{stdin: 1}]", "servers[0].stdin: 1 is not true or false"),
        ("servers: [{stdin: false}]", "servers[0]: no input is given"),
        ("servers: [{files: a.log}]", "servers[0].files: 'a.log' is not a list of paths"),
        ("servers: [{unit: a, url: kimi:30000}]", "is not an address such as http://"),
        ("servers: [{unit: a, url: 'http://h:99999'}]", "is not an address such as http://"),
        ("servers: [{unit: a, token_file: t}]", "servers[0].token_file: it needs `url`"),
        ("servers: [{unit: a, facts: [8]}]", "servers[0].facts: [8] is not a mapping of facts"),
        ("servers: [{unit: a, facts: {}}]", "servers[0].facts: {} is not a mapping of facts"),
        (
            "servers: [{unit: a, facts: {pp_size: 65}}]",
            "servers[0].facts.pp_size: 65 is not a whole number from 1 to 64",
        ),
        (
            "servers: [{unit: a, facts: {decode_log_interval: -1}}]",
            "servers[0].facts.decode_log_interval: -1 is not a whole number from 1 to 1000000",
        ),
        (
            "servers: [{unit: a, facts: {max_running_requests: }}]",
            "servers[0].facts.max_running_requests: None is not a whole number",
        ),
        (
            "servers: [{unit: a, facts: {version: 0.5}}]",
            "servers[0].facts.version: 0.5 is not printable text",
        ),
        ("servers: [{unit: a, url: 'ftp://h:1'}]", "is not an address such as http://"),
        ("servers: [{unit: a}, {unit: a}]", "servers[1].name: 'a' is that of servers[0] too"),
        (
            "servers: [{unit: a}, {unit: a}]",
            "servers[1].unit: 'a.service' is that of servers[0] too",
        ),
        (
            "servers: [{name: a, stdin: true}, {name: b, stdin: true}]",
            "servers[1].stdin: True is that of servers[0] too",
        ),
        ("nvml: true\nnvml: false", "line 2: the key 'nvml' is written twice"),
        ("servers: [", "line 1, column 11: not YAML"),
        ("servers: &a [*a]", "aliases (*name) are not supported"),
        ("a: !!python/object:os.system {}", "not YAML: could not determine a constructor"),
        ("a: 2024-99-99", "not YAML: month must be in 1..12"),
        ("a: \x00", "not YAML"),
        ("[" * 5000, "nested too deeply"),
        ("a: 1\n---\nb: 2", "not YAML: but found another document"),
    ],
)
def test_a_mistake_is_named(text: str, mistake: str) -> None:
    assert any(mistake in line for line in check(text)), check(text)


def test_a_key_written_twice_does_not_hide_the_other_mistakes() -> None:
    assert len(check("nvml: true\nnvml: 3\nlisten: x")) == 3


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    (mistake,) = check("servers: [{unit: a, url: 'http://me:geheim@host:1'}]")
    assert mistake == "servers[0].url: it must not hold a user, a password or a query"


def test_a_key_among_the_facts_is_refused_and_not_repeated() -> None:
    mistakes = check(
        "servers: [{unit: a, facts: {api_key: geheim, model_path: 'x?token=geheim'}}]",
    )
    assert len(mistakes) == 2
    assert mistakes[0].startswith("servers[0].facts: 'api_key' is no known fact; known: pp_size, ")
    assert "geheim" not in "".join(mistakes)


def test_aliases_cannot_grow_without_bound() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
    )
    assert check(bomb) == ["line 2, column 8: not YAML: aliases (*name) are not supported"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:10810", ("127.0.0.1", 10810)),
        (":10810", (None, 10810)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
        ("node-a.example:1", ("node-a.example", 1)),
        ("example.:1", ("example.", 1)),
    ],
)
def test_an_address_to_listen_on(text: str, expected: tuple[str | None, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "10810", "::1:10810", ":65536", ":-1", ":٣", "a b:1", "[x]:1", "h:", "http://h:1"),
        *("a..b:1", ".:1", f"{'a' * 64}:1"),  # Python cannot ask for the address of such a name
    ],
)
def test_no_address_to_listen_on(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^listen: .* is not ADDRESS:PORT"):
        parse_listen(text)


def test_an_unreadable_file_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such file; deploy/exporter\.yaml is an example"):
        load(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match="Is a directory; make it a file"):
        load(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    path.write_text("nvml: true")
    path.chmod(0)
    with pytest.raises(ConfigError, match="Permission denied; make it a file that the exporter's"):
        load(path)


def test_a_file_that_is_no_text_or_endless_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "exporter.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load(path)
    path.write_bytes(b"# " + b"x" * (300 << 10))
    with pytest.raises(ConfigError, match="is larger than"):
        load(path)


YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from([setting.key for setting in (*SETTINGS, *SERVER_SETTINGS)]) | st.text()


@given(
    st.dictionaries(KEYS, YAML_VALUES, max_size=6),
    st.lists(st.dictionaries(KEYS, YAML_VALUES, max_size=6), max_size=3),
)
def test_whatever_the_mapping_holds_it_is_a_configuration_or_named_mistakes(
    document: dict[str, object], servers: list[dict[str, object]]
) -> None:
    with contextlib.suppress(ConfigError):
        config = build({**document, "servers": servers})
        assert all(server.name.isprintable() for server in config.servers)


@given(st.text())
def test_whatever_the_text_it_is_a_configuration_or_named_mistakes(text: str) -> None:
    check(text)


def test_the_example_loads_to_the_defaults() -> None:
    assert load(EXAMPLE) == Config((ServerConfig("sglang", unit="sglang.service"),))


@pytest.mark.parametrize("setting", [*SETTINGS, *SERVER_SETTINGS], ids=lambda s: s.key)
def test_the_example_names_every_setting_and_shows_its_default(setting: Setting) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    found = re.search(rf"^\s*(?:# )?(?:- )?{setting.key}:(.*)$", text, re.MULTILINE)
    assert found
    if setting.default and setting.key != "servers":
        assert found[1].split("#")[0].strip() == setting.default


def test_the_defaults_of_the_table_are_those_of_the_configuration() -> None:
    written = "\n".join(f"{s.key}: {s.default}" for s in SETTINGS)
    assert parse(written) == parse("{}")


@pytest.mark.parametrize("setting", [*SETTINGS, *SERVER_SETTINGS], ids=lambda s: s.key)
def test_every_example_of_the_table_is_accepted(setting: Setting) -> None:
    if setting.example:
        setting.read(yaml.safe_load(setting.example))


def test_the_documentation_names_every_setting() -> None:
    text = DOCS.read_text(encoding="utf-8")
    missing = [s.key for s in (*SETTINGS, *SERVER_SETTINGS) if f"`{s.key}`" not in text]
    assert missing == []


def test_the_examples_of_the_documentation_load() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 3
    assert [check(block) for block in blocks] == [[]] * len(blocks)
