"""Checks of passwords: what is let in, and what it costs."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import bcrypt
import pytest

from exporter.web_config.passwords import (
    MOST_CHECKS,
    MOST_CHECKS_OF_A_CLIENT,
    MOST_REFUSED,
    Passwords,
    TooManyChecksError,
    credentials_of,
)

HASHES = {
    user: bcrypt.hashpw(word, bcrypt.gensalt(4)).decode()
    for user, word in (("alice", b"sesame"), ("bob", b"p\xc3\xa4ss:w\0rd"))
}


class Checking(ThreadPoolExecutor):
    """The one thread; it can be held up, and tells which hashes it was given."""

    def __init__(self) -> None:
        super().__init__(1)
        self.hashes: list[bytes] = []
        self.may = threading.Event()
        self.may.set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.hashes.append(args[1])

        def once_it_may() -> Any:
            self.may.wait(60)
            return fn(*args, **kwargs)

        return super().submit(once_it_may)


@pytest.fixture(name="thread")
def fixture_thread() -> Iterator[Checking]:
    with Checking() as thread:
        yield thread
        thread.may.set()


@pytest.fixture(name="passwords")
def fixture_passwords(thread: Checking) -> Passwords:
    return Passwords(HASHES, thread)


async def test_only_the_right_password_of_a_user_is_let_in(passwords: Passwords) -> None:
    assert await passwords.admits(b"alice", b"sesame", "a")
    assert await passwords.admits(b"bob", b"p\xc3\xa4ss:w\0rd", "a")
    for user, password in (
        (b"alice", b"p\xc3\xa4ss:w\0rd"),
        (b"alice", b""),
        (b"Alice", b"sesame"),
        (b"", b"sesame"),
        (b"alic", b"e:sesame"),
        (b"mallory", b"sesame"),
    ):
        assert not await passwords.admits(user, password, "a")


async def test_credentials_seen_before_cost_no_check(
    passwords: Passwords, thread: Checking
) -> None:
    for _ in range(3):
        assert await passwords.admits(b"alice", b"sesame", "a")
        assert not await passwords.admits(b"alice", b"wrong", "a")
        assert not await passwords.admits(b"nobody", b"sesame", "a")
    assert len(thread.hashes) == 3


async def test_an_unknown_user_costs_what_some_known_one_costs(
    passwords: Passwords, thread: Checking
) -> None:
    for number in range(40):
        name = b"nobody%d" % number
        assert not await passwords.admits(name, b"x", "a")
        assert not await passwords.admits(name, b"y", "a")
    assert {hashed.decode() for hashed in thread.hashes} == set(HASHES.values())
    assert thread.hashes[::2] == thread.hashes[1::2]  # a name always costs the same


async def test_a_password_beyond_what_bcrypt_knows_is_cut_as_it_was_when_hashed(
    thread: Checking,
) -> None:
    hashed = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()
    passwords = Passwords({"carol": hashed}, thread)
    assert await passwords.admits(b"carol", b"x" * 100, "a")
    assert not await passwords.admits(b"carol", b"x" * 71, "a")


async def test_wrong_credentials_are_forgotten_one_by_one_and_right_ones_stay(
    passwords: Passwords, thread: Checking
) -> None:
    assert await passwords.admits(b"alice", b"sesame", "a")
    for number in range(MOST_REFUSED + 1):
        await passwords.admits(b"alice", b"%d" % number, "a")
    assert len(passwords._refused) == MOST_REFUSED
    checks = len(thread.hashes)
    assert await passwords.admits(b"alice", b"sesame", "a")
    assert not await passwords.admits(b"alice", b"1", "a")
    assert len(thread.hashes) == checks
    await passwords.admits(b"alice", b"0", "a")
    assert len(thread.hashes) == checks + 1


async def test_one_who_guesses_does_not_keep_others_waiting(
    passwords: Passwords, thread: Checking
) -> None:
    assert await passwords.admits(b"alice", b"sesame", "honest")
    thread.may.clear()
    guesses = [
        asyncio.create_task(passwords.admits(b"alice", b"%d" % number, "guesser"))
        for number in range(30)
    ]
    await asyncio.sleep(0)
    refused = [task for task in guesses if task.done()]
    assert len(refused) == 30 - MOST_CHECKS_OF_A_CLIENT
    assert await passwords.admits(b"alice", b"sesame", "honest"), "known: answered meanwhile"
    new = asyncio.create_task(passwords.admits(b"bob", b"p\xc3\xa4ss:w\0rd", "honest"))
    await asyncio.sleep(0)
    assert not new.done()
    thread.may.set()
    assert await new
    results = await asyncio.gather(*guesses, return_exceptions=True)
    assert [type(result) for result in results].count(TooManyChecksError) == len(refused)
    assert not await passwords.admits(b"alice", b"guess again", "guesser"), "and once more later"


async def test_checks_that_wait_are_bounded_over_all_clients(
    passwords: Passwords, thread: Checking
) -> None:
    thread.may.clear()
    guesses = [
        asyncio.create_task(passwords.admits(b"alice", b"%d" % number, f"client {number}"))
        for number in range(MOST_CHECKS)
    ]
    await asyncio.sleep(0)
    with pytest.raises(TooManyChecksError):
        await passwords.admits(b"alice", b"one more", "another")
    thread.may.set()
    assert not any(await asyncio.gather(*guesses))


async def test_the_same_credentials_at_once_are_checked_once(
    passwords: Passwords, thread: Checking
) -> None:
    """A browser opens six connections at once."""
    thread.may.clear()
    tasks = [
        asyncio.create_task(passwords.admits(b"alice", b"sesame", "browser")) for _ in range(6)
    ]
    await asyncio.sleep(0)
    tasks[0].cancel()  # who asked first goes away
    thread.may.set()
    assert await asyncio.gather(*tasks[1:]) == [True] * 5
    assert len(thread.hashes) == 1


def basic(text: bytes) -> str:
    return base64.b64encode(text).decode()


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"Basic {basic(b'a:b')}", (b"a", b"b")),
        (f"bASIC  {basic(b'a:b:c')} ", (b"a", b"b:c")),
        (f"Basic {basic(b':')}", (b"", b"")),
        (f"Basic {basic(b'ab')}", None),
        (f"Bearer {basic(b'a:b')}", None),
        ("Basic", None),
        ("Basic %%%", None),
        ("Basic ä", None),
        ("", None),
    ],
)
def test_credentials_are_read_from_the_header(
    header: str, expected: tuple[bytes, bytes] | None
) -> None:
    assert credentials_of(header) == expected
