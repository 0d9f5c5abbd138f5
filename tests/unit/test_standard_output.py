"""What is asked of a terminal before a report is laid out for it."""

import io

import pytest

from exporter import standard_output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "shown"), [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({}, True)]
)
def test_a_terminal_that_is_dumb_gets_no_color(
    variables: dict[str, str], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", variables)
    monkeypatch.setattr("sys.stdout", Terminal())
    assert standard_output.shows_color() is shown
    monkeypatch.setattr("os.environ", {**variables, "NO_COLOR": "1"})
    assert not standard_output.shows_color()


@pytest.mark.parametrize(("wide", "used"), [("20", 40), ("60", 60), ("200", 80)])
def test_text_is_as_wide_as_the_terminal_within_bounds(
    wide: str, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", wide)
    assert standard_output.columns() == 80, "a file has no width"
    monkeypatch.setattr("sys.stdout", Terminal())
    assert standard_output.columns() == used
