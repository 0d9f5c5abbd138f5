"""The live page against the code behind it: it is no Python, so names are compared here."""

import re
from pathlib import Path

from exporter.page.files import POLICY, palette_css
from exporter.page.words import SWITCH_ON
from exporter.palette import LOOKS, MEANINGS, CellState
from exporter.pipeline.bubbles import TELLS_WAITING
from exporter.records import Method, Mode

STATIC = Path(__file__).parents[2] / "exporter" / "page" / "static"
HTML = (STATIC / "index.html").read_text()
SCRIPTS = {path.name: path.read_text() for path in STATIC.glob("*.js")}


def listed(script: str, name: str) -> set[str]:
    """The strings of a list in a script."""
    found = re.search(rf"const {name} = \[(.*?)\];", SCRIPTS[script], re.DOTALL)
    assert found is not None
    return set(re.findall(r'"(\w+)"', found[1]))


def test_the_scripts_draw_every_state_there_is() -> None:
    assert listed("picture.js", "STATES") == set(CellState)
    assert listed("page.js", "STATES") == set(CellState)


def test_the_scripts_know_modes_and_upper_bounds() -> None:
    assert listed("panels.js", "MODES") == set(Mode)
    assert listed("panels.js", "BOUNDS") == set(Method) - TELLS_WAITING


def test_every_element_that_a_script_asks_for_is_there() -> None:
    there = set(re.findall(r'\bid="([\w-]+)"', HTML))
    for name, script in SCRIPTS.items():
        assert set(re.findall(r'byId\("([\w-]+)"\)', script)) <= there, name


def test_no_script_makes_markup_of_a_text() -> None:
    for name, script in SCRIPTS.items():
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in script, (name, word)


def test_nothing_of_the_page_names_another_host() -> None:
    for name, text in {"index.html": HTML, "policy": POLICY, **SCRIPTS}.items():
        assert "//" not in re.sub(r"(^|\s)//\s.*|/\*.*?\*/", "", text), name
    assert not re.search(r"<(script|style)>|\son\w+=|\sstyle=", HTML)


def test_the_palette_is_the_one_of_the_reports() -> None:
    css = palette_css()
    for state, look in LOOKS.items():
        assert f"--{state}:{look.light};" in css
        assert f"--{state}:{look.dark};" in css
        assert MEANINGS[state] in css


def test_every_recommendation_of_the_exporter_is_explained() -> None:
    root = Path(__file__).parents[2] / "exporter"
    told = set()
    for path in ("server_state.py", "ingest.py"):
        source = (root / path).read_text()
        told |= set(re.findall(r'(?:wanted|recommendations)\.add\("(\w+)"\)', source))
    assert told == set(SWITCH_ON)
