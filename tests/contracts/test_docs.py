"""The documentation against the code beside it."""

import re
from pathlib import Path

import pytest

from exporter.cli import _parser
from exporter.diagnosis.findings import Verdict
from exporter.metric_catalog import CATALOG, PREFIX
from exporter.settings import SERVER_SETTINGS, SETTINGS

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_metric_names_in_the_text_exist(page: Path) -> None:
    known = {spec.name for spec in CATALOG.values()}
    for name in re.findall(rf"(?<!:)\b{PREFIX}[a-z_]*[a-z]\b", page.read_text()):
        if not name.endswith("_exporter"):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert base in known or name in known, name


def test_the_readme_names_every_command_and_the_two_that_matter() -> None:
    readme = (ROOT / "README.md").read_text()
    actions = next(action for action in _parser()._actions if action.dest == "command")
    for command in actions.choices or ():
        assert re.search(rf"\b{command}\b", readme), command
    assert "make demo" in readme
    assert "make test" in readme


def test_the_configuration_page_names_every_setting() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    for setting in (*SETTINGS, *SERVER_SETTINGS):
        assert f"`{setting.key}`" in page, setting.key


def test_the_makefile_names_only_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)
    assert phony is not None
    for target in phony[1].split():
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_verdict_is_explained() -> None:
    page = ROOT / "docs" / "diagnose.md"
    told = re.findall(r"^\| `([a-z_]+)` \|", page.read_text(), re.MULTILINE)
    assert told == [str(verdict) for verdict in Verdict]
