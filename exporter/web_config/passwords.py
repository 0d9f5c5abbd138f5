"""Users and passwords: who is let in, at the cost of one bcrypt check for what was not seen before.

A check runs in a thread, one at a time. Nothing tells an unknown user from a wrong password.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import bcrypt

MOST_CHECKS = 16
"""That wait or run, of all clients."""
MOST_CHECKS_OF_A_CLIENT = 2
"""So that one that guesses does not keep the others waiting."""
MOST_REFUSED = 1024
"""Wrong credentials that are remembered."""
_LONGEST_PASSWORD = 72
"""Bytes; bcrypt knows no more."""


class TooManyChecksError(Exception):
    """Too many passwords are being checked; come again in a moment."""


def credentials_of(header: str) -> tuple[bytes, bytes] | None:
    """User and password of an `Authorization` header; `None` if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return None
    return (user, password) if colon else None


class Passwords:
    """The users of one configuration, and which credentials were right or wrong of late."""

    def __init__(self, users: Mapping[str, str], executor: ThreadPoolExecutor) -> None:
        """`users` has bcrypt hashes by name, at least one; `executor` checks them."""
        self._hashes = {user.encode(): hashed.encode() for user, hashed in users.items()}
        self._some = tuple(self._hashes.values())
        self._executor = executor
        self._secret = secrets.token_bytes(32)
        self._accepted: dict[bytes, bytes] = {}
        self._refused: dict[bytes, None] = {}
        self._running: dict[bytes, asyncio.Task[bool]] = {}
        self._checks: Counter[str] = Counter()

    def hash_of(self, user: bytes) -> bytes | None:
        """The hash of that user's password; `None` if there is no such user."""
        return self._hashes.get(user)

    async def admits(self, user: bytes, password: bytes, client: str) -> bool:
        """Whether that user has that password; `client` is who asks, as an address.

        Raises:
            TooManyChecksError: It would have to be checked, and too many are.
        """
        password = password[:_LONGEST_PASSWORD]
        digest = self._digest(b"%d:%b:%b" % (len(user), user, password))
        if hmac.compare_digest(self._accepted.get(user, b""), digest):
            return True
        if digest in self._refused:
            return False
        check = self._running.get(digest)
        if check is None:
            if len(self._running) >= MOST_CHECKS or self._checks[client] >= MOST_CHECKS_OF_A_CLIENT:
                raise TooManyChecksError
            self._checks[client] += 1
            check = asyncio.create_task(self._check(user, password, digest, client))
            self._running[digest] = check
        return await asyncio.shield(check)  # others may wait for the same one

    async def _check(self, user: bytes, password: bytes, digest: bytes, client: str) -> bool:
        # A name that nobody has costs what one of the others costs, and always the same.
        pick = int.from_bytes(self._digest(user)) % len(self._some)
        hashed = self._hashes.get(user, self._some[pick])
        try:
            matches = await asyncio.get_running_loop().run_in_executor(
                self._executor, bcrypt.checkpw, password, hashed
            )
        finally:
            del self._running[digest]
            self._checks[client] -= 1
            self._checks += Counter()  # forgets who has none
        if matches and user in self._hashes:
            self._accepted[user] = digest
            return True
        self._refused[digest] = None
        if len(self._refused) > MOST_REFUSED:
            del self._refused[next(iter(self._refused))]
        return False

    def _digest(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._secret).digest()
