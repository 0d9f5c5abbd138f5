"""States of a stage are told apart without color, and text is readable."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from exporter.diagnose import html_report
from exporter.palette import LOOKS, CellState

STYLE = (Path(html_report.__file__).parent / "page.css").read_text()


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("ground", ["light", "dark"])
def test_what_stands_on_each_other_differs_in_lightness(ground: str) -> None:
    order = (CellState.WORKING, CellState.WAITING, CellState.IDLE)
    colors = [getattr(LOOKS[state], ground) for state in order]
    assert [contrast(*pair) >= 3.0 for pair in pairwise(colors)] == [True, True]


def test_what_is_not_known_for_sure_is_striped() -> None:
    stripes = {state: look.stripes for state, look in LOOKS.items()}
    assert stripes[CellState.UNKNOWN] is not None
    assert stripes[CellState.RESIDENT] is not None
    assert stripes[CellState.UNKNOWN].upright
    assert not stripes[CellState.RESIDENT].upright
    assert stripes[CellState.WORKING] is None
    assert stripes[CellState.IDLE] is None


@pytest.mark.parametrize("block", [0, 1, 2], ids=["light", "dark", "print"])
def test_text_of_the_report_has_contrast(block: int) -> None:
    blocks = re.findall(r"--page: [^}]*", STYLE)
    colors = dict(re.findall(r"--(\w+): (#\w{6})", blocks[block]))
    for ground in ("page", "card"):
        for text in ("text", "soft", "healthy", "fault", "open"):
            assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
