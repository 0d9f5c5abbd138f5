"""The shape of the code, held by a machine."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "exporter").rglob("*.py"))
CODE = [*MODULES, *sorted((ROOT / "grafana").rglob("*.py"))]

LONG_MODULES = {
    "exporter/metric_catalog.py": "data: one entry a metric",
    "exporter/records.py": "data: one record a boundary",
    "exporter/thresholds.py": "data: one entry an alert",
}
LONG_FUNCTIONS = {
    "exporter/simulator/log_text.py:server_args": "one literal: the arguments a real server prints",
}


def functions() -> Iterator[tuple[str, int]]:
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield f"{path.relative_to(ROOT)}:{node.name}", lines


def test_no_module_is_longer_than_300_lines_without_a_reason() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text().split("\n")) for p in CODE}
    assert {name for name, length in lengths.items() if length > 301} <= LONG_MODULES.keys()


def test_no_function_is_longer_than_50_lines_without_a_reason() -> None:
    assert {name for name, lines in functions() if lines > 50} <= LONG_FUNCTIONS.keys()


def test_no_line_is_split_where_a_prompt_could_split_it() -> None:
    """`str.splitlines()` splits on U+2028 and others: a user's text could become a line."""
    for path in CODE:
        assert ".splitlines(" not in path.read_text(), path


def test_files_are_named_for_their_subject() -> None:
    vague = {"utils", "util", "helpers", "common", "manager", "base", "types", "misc"}
    assert not {path.stem for path in CODE} & vague


def test_requirements_are_pinned_with_hashes_and_name_no_address() -> None:
    for path in ROOT.glob("requirements*.txt"):
        text = path.read_text()
        assert "://" not in text
        assert not re.search(r"^--(?!hash)", text, re.MULTILINE)
        pinned = re.findall(r"^[a-z0-9-]+==[^ ]+ \\$", text, re.MULTILINE)
        assert len(pinned) == len(re.findall(r"^[a-z]", text, re.MULTILINE))


def test_every_dependency_of_the_project_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["journal"]]
    pinned = (ROOT / "requirements.txt").read_text()
    for requirement in wanted:
        name = re.split(r"[>=]", requirement)[0]
        assert re.search(rf"^{name}==", pinned, re.MULTILINE), name


def test_design_names_every_module_on_its_floor() -> None:
    design = (ROOT / "DESIGN.md").read_text()
    for path in MODULES:
        name = path.relative_to(ROOT / "exporter").parts[0].removesuffix(".py")
        if not name.startswith("__"):
            assert f"`{name}" in design, f"{name} is missing in the floors of DESIGN.md"
