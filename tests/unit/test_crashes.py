"""Unexpected exceptions: counted each, said once."""

from __future__ import annotations

import asyncio

import pytest

from exporter import crashes as crashes_module
from exporter.crashes import MOST_KINDS, Crashes, kept_running
from exporter.records import FatalSourceError


def raised(error: Exception) -> Exception:
    try:
        raise error  # noqa: TRY301  # here is where it is raised
    except Exception as caught:  # noqa: BLE001  # whatever it is
        return caught


def test_each_is_counted_and_its_stack_said_once(caplog: pytest.LogCaptureFixture) -> None:
    crashes = Crashes()
    crashes.expect("journal:kimi")
    assert crashes.counts == {"journal:kimi": 0}
    error = raised(ValueError("a user's prompt"))
    for _ in range(1000):
        crashes.note("journal:kimi", error)
    assert crashes.counts == {"journal:kimi": 1000}
    first, *more = caplog.messages
    assert "builtins.ValueError" in first
    assert __file__ in first
    assert [message.rpartition(",")[2] for message in more] == [
        " now 10 times",
        " now 100 times",
        " now 1000 times",
    ]


def test_what_an_exception_says_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It may quote a log line."""
    texts = ["a user's " + "prompt", "another " + "prompt"]
    try:
        error = raised(ValueError(texts[0]))
        raise KeyError(texts[1]) from error  # noqa: TRY301  # here is where it is raised
    except KeyError as error:
        Crashes().note("nvml", error)
    assert not [text for text in texts if text in caplog.text]
    assert "ValueError\nled to\n" in caplog.text


def test_another_place_or_kind_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    crashes = Crashes()
    for task in ("a", "b"):
        crashes.note(task, raised(ValueError()))
        crashes.note(task, raised(KeyError()))
    assert len(caplog.messages) == 4


def test_the_kinds_told_apart_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    crashes = Crashes()
    error = raised(ValueError())
    for number in range(5 * MOST_KINDS):
        crashes.note(str(number % (2 * MOST_KINDS)), error)
    assert len(caplog.messages) < MOST_KINDS + 10


async def test_what_breaks_is_begun_again_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes_module, "FIRST_PAUSE_SECONDS", 0.0)
    crashes, lives = Crashes(), 0

    async def work() -> None:
        nonlocal lives
        lives += 1
        if lives < 4:
            raise ValueError

    await kept_running("housekeeping", work, crashes)
    assert (lives, crashes.counts) == (4, {"housekeeping": 3})


async def test_what_only_a_new_process_can_help_is_not_kept() -> None:
    async def work() -> None:
        raise FatalSourceError("restart")

    with pytest.raises(FatalSourceError):
        await asyncio.wait_for(kept_running("nvml", work, Crashes()), 60)
