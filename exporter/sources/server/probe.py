"""Asks an SGLang server for its configuration over HTTP, once a launch.

In: `/server_info`, or `/get_server_info` where that is not known (before 0.5.6; newer servers print
a warning for it, so it is asked at most once a launch). Out: one `ServerFacts` a launch. Never
polls: each question leaves an access line in SGLang's log. While a server loads its model nobody
answers; it is asked at ever longer intervals, and at once when the log says that it fired up. Never
asks `/health`: it injects work.

Which facts hold where several ways tell them, best first:

1. `configuration`: a person decided.
2. `server_info`: the values the running server resolved, which no log text can forge.
3. `capacity_line`: `max_running_requests` as each scheduler settled on it.
4. `server_args`: what was asked for; the only one while the server still loads its model.

Records are folded in the order they come, so whoever folds them repeats the better ones after a
lesser one of the same launch. A new launch voids all but the configuration's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from exporter.records import EventKind, FactValue, Record, ServerEvent, ServerFacts, SourceHealth
from exporter.sglang.server_info import NotServerInfoError, parse_server_info
from exporter.sources import Emit, Position
from exporter.sources.server.answer import (
    ANSWER_SECONDS,
    NoAnswerError,
    NoSuchPathError,
    NotAllowedError,
    NotReachedError,
    UnusableAnswerError,
    fetch,
)
from exporter.sources.server.token_file import read_token

FIRST_PAUSE_SECONDS = 5.0
LAST_PAUSE_SECONDS = 60.0
MOST_UNUSABLE_ANSWERS = 5
"""After so many the server is left alone until its next launch: each one cost it a log line."""

log = logging.getLogger(__name__)


class ServerProbe:
    """The facts of one server, from its own HTTP API.

    Attributes:
        health: `up` while the facts of the present launch are known; a server that stopped
            afterwards is not noticed here. `last_error` names the remedy.
        settled: Set while nothing more is asked until the next launch, with or without facts.
    """

    def __init__(  # noqa: PLR0913  # one server's address and key, and what tests stand in for
        self,
        server: str,
        url: str,
        *,
        token_file: Path | None = None,
        token: str | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Names the server and the base address of its API, as the configuration checked it.

        The token is read from its file at each question, so a new one needs no restart; `token`
        is one that is known already. `clock` is the wall clock of the records.
        """
        self.health = SourceHealth(f"server:{server}")
        self._server = server
        self._url = url.rstrip("/")
        self._token_file = token_file
        self._token = token
        self._clock = clock
        self._sleep = sleep
        self._answer_seconds = answer_seconds
        self.settled = asyncio.Event()
        self._launched = asyncio.Event()
        self._fired_up = asyncio.Event()
        self._said: str | None = None

    async def open(self, position: Position | None) -> None:
        """Nothing to open: a server that is down is waited for while running."""

    async def run(self, emit: Emit) -> None:
        """Emits the facts of each launch; never ends, never raises for what the server does."""
        while True:
            self._launched.clear()
            self._fired_up.clear()
            self.settled.clear()
            self.health.up = False
            await self._ask_until_known(emit)
            self.settled.set()
            await self._launched.wait()

    def hear(self, record: Record) -> None:
        """Takes note of what the log tells of the server: a new launch, or that it fired up."""
        if isinstance(record, ServerFacts) and record.new_launch:
            self.ask_again()
        elif isinstance(record, ServerEvent) and record.kind is EventKind.FIRED_UP:
            self._fired_up.set()

    def ask_again(self) -> None:
        """Takes note that the server was launched anew: what was answered so far is void."""
        self.settled.clear()
        self._launched.set()

    def position(self) -> Position | None:
        """Always `None`: facts are asked for anew."""
        return None

    async def close(self) -> None:
        """Nothing is held between questions; may be called twice."""
        self.health.up = False

    # --- one launch ----------------------------------------------------------------------------

    async def _ask_until_known(self, emit: Emit) -> None:
        """Asks until there is an answer, another launch, or asking again is useless."""
        launch = _Launch()
        pause_seconds = FIRST_PAUSE_SECONDS
        while not self._launched.is_set():
            try:
                facts = await self._ask(launch)
            except NoAnswerError as error:
                self._say(str(error), expected=isinstance(error, NotReachedError))
                if not launch.may_ask_again(error):
                    return
            else:
                if facts is not None and not self._launched.is_set():
                    self.health.up, self.health.last_error, self._said = True, None, None
                    log.info("read the server's facts source=%s", self.health.name)
                    emit(ServerFacts(self._server, self._clock(), facts, "server_info"))
                    return
            await self._pause(launch, pause_seconds)
            pause_seconds = min(2 * pause_seconds, LAST_PAUSE_SECONDS)

    async def _ask(self, launch: _Launch) -> dict[str, FactValue] | None:
        """The facts; `None` if the server was not asked, as it refused this very token before.

        Raises:
            NoAnswerError: There are none.
        """
        token = self._token
        if self._token_file is not None:
            token = await asyncio.to_thread(read_token, self._token_file)
        if launch.refused and token == launch.refused_token:
            return None
        path = "/server_info"
        try:
            try:
                body = await fetch(self._url + path, token, seconds=self._answer_seconds)
            except NoSuchPathError:
                path = "/get_server_info"
                body = await self._ask_by_old_name(path, token, launch)
            return parse_server_info(body, same_node=_is_loopback(self._url))
        except NotAllowedError:
            launch.refused, launch.refused_token = True, token
            raise
        except NotServerInfoError as error:
            raise UnusableAnswerError(
                f"cannot use the answer of {self._url}{path}: {error}; "
                "is `url` that of an SGLang server?"
            ) from None

    async def _ask_by_old_name(self, path: str, token: str | None, launch: _Launch) -> bytes:
        try:
            body = await fetch(self._url + path, token, seconds=self._answer_seconds)
        except (NotReachedError, NotAllowedError):
            raise  # its endpoint did not run, so nothing was printed
        except NoAnswerError:
            launch.old_name_asked = True
            raise
        launch.old_name_asked = True
        return body

    def _say(self, message: str, *, expected: bool) -> None:
        """Keeps what went wrong, and logs it unless it was logged just before."""
        self.health.last_error = message
        if message != self._said:
            log.log(
                logging.INFO if expected else logging.WARNING,
                "%s source=%s",
                message,
                self.health.name,
            )
            self._said = message

    async def _pause(self, launch: _Launch, seconds: float) -> None:
        """Waits, at most until the server is launched anew or, once a launch, has fired up."""
        waits = [
            asyncio.ensure_future(self._sleep(seconds)),
            asyncio.ensure_future(self._launched.wait()),
        ]
        if not launch.fired_up:
            waits.append(asyncio.ensure_future(self._fired_up.wait()))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        launch.fired_up = self._fired_up.is_set()


class _Launch:
    """What asking taught about one launch of the server."""

    def __init__(self) -> None:
        self.fired_up = False
        self.old_name_asked = False
        self.refused = False
        self.refused_token: str | None = None
        self._unusable_answers = 0

    def may_ask_again(self, error: NoAnswerError) -> bool:
        """Whether asking again can help and costs the server nothing, or not too much."""
        if isinstance(error, NoSuchPathError):
            return False
        if isinstance(error, UnusableAnswerError):
            self._unusable_answers += 1
            return not self.old_name_asked and self._unusable_answers < MOST_UNUSABLE_ANSWERS
        return True


def _is_loopback(url: str) -> bool:
    """Whether an address is certainly this machine's."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
