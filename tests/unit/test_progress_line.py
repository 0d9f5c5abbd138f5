"""How far something is: one line on a terminal, and nobody else's line cut by it."""

import io
import logging
import sys

import pytest

from exporter.diagnose.progress_line import ProgressLine


class Terminal(io.StringIO):
    """Text as a terminal takes it; `shown` is what is left to see of it."""

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> list[str]:
        lines = []
        for text in self.getvalue().split("\n"):
            line = ""
            for part in text.split("\r"):
                line = part + line[len(part) :]
            lines.append(line.rstrip())
        return lines


def onto_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Where stderr and the log go from now on."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(found)])
    return found


def test_a_log_record_stands_on_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = onto_terminal(monkeypatch)
    with ProgressLine() as progress:
        progress.say("measuring, 30 s left, and some more that a short record does not cover")
        logging.getLogger("exporter").warning("short")
        progress.say("measuring, 29 s left")
        assert terminal.shown == ["short", "measuring, 29 s left"]


def test_nothing_is_left_of_it_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = onto_terminal(monkeypatch)
    with ProgressLine() as progress:
        progress.say("measuring")
    logging.getLogger("exporter").warning("done")
    assert terminal.shown == ["done", ""]
    assert not logging.getLogger().handlers[0].filters


def test_elsewhere_each_text_is_a_line_that_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with ProgressLine() as progress:
        progress.say("a")
        progress.say("b" * 100)
    assert capsys.readouterr().err == f"a\n{'b' * 79}\n"
