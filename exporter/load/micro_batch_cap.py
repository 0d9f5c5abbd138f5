"""SGLang's cap on requests in one micro-batch: what it is now, and setting it live.

In: `internal_states` of `/server_info`, one object for each data-parallel rank. Out: a POST to
`/set_internal_state`. Whether that took is only known from reading anew: 0.5.5 answers `[true]`
even to what it refuses (srt/managers/scheduler.py, set_internal_state), and releases before 0.5.3
answer 500 to what they took. A cap is accepted from 1 to `max_running_requests // pp_size`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from exporter.load.failures import LoadError
from exporter.load.tokens import ADMIN_KEY_VARIABLE
from exporter.sources.server.answer import (
    ANSWER_SECONDS,
    NoAnswerError,
    NoSuchPathError,
    NotAllowedError,
    NotReachedError,
    UnusableAnswerError,
    fetch,
)

CAP = "pp_max_micro_batch_size"
_OLD_NAME = "max_micro_batch_size"
"""Before 0.5.3.post1."""
MOST_CAP = 1 << 20


class SettingRefusedError(LoadError):
    """The cap cannot be set; it is what it was, and the message says why."""


class CapUnknownError(LoadError):
    """The server does not say now what the cap is."""


@dataclass(frozen=True, slots=True)
class CapState:
    """The cap as the server has it.

    Attributes:
        name: What this version calls it.
        most: The largest cap this server accepts; `None`: it does not say.
    """

    name: str
    value: int
    most: int | None


@dataclass(frozen=True, slots=True)
class CapControl:
    """Reads and sets the cap of one server.

    Attributes:
        admin_token: For setting it; servers with `--admin-api-key` want that key there.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    admin_token: str | None = field(default=None, repr=False)
    answer_seconds: float = ANSWER_SECONDS

    async def read(self) -> CapState:
        """The cap now.

        Raises:
            CapUnknownError: The server does not answer, has no such cap, or different ones.
        """
        base = self.url.rstrip("/")
        try:
            try:
                body = await fetch(f"{base}/server_info", self.token, seconds=self.answer_seconds)
            except NoSuchPathError:
                body = await fetch(
                    f"{base}/get_server_info", self.token, seconds=self.answer_seconds
                )
        except NoAnswerError as error:
            raise CapUnknownError(str(error)) from None
        state = await asyncio.to_thread(_cap_of, body)
        if state is None:
            raise CapUnknownError(
                f"cannot tell {CAP} of {base}: the server does not say it, or not the same for all "
                "data-parallel ranks; is it an SGLang server of 0.4.6.post2 or newer?"
            )
        return state

    async def post(self, name: str, value: int) -> None:
        """Asks the server to set the cap; only `read` tells whether it did.

        Raises:
            SettingRefusedError: It will not: the key is wrong, or there is no such endpoint.
            CapUnknownError: It was not reached.
        """
        address = f"{self.url.rstrip('/')}/set_internal_state"
        token = self.token if self.admin_token is None else self.admin_token
        body = json.dumps({"server_args": {name: value}}).encode()
        try:
            await fetch(address, token, seconds=self.answer_seconds, post=body)
        except NotAllowedError:
            raise SettingRefusedError(
                f"cannot set {name} at {address}: the server wants another key; one started with "
                f"--admin-api-key takes that key only, from the environment variable "
                f"{ADMIN_KEY_VARIABLE}"
            ) from None
        except NoSuchPathError:
            raise SettingRefusedError(
                f"cannot set {name} at {address}: this server cannot set it while it runs; restart "
                f"it with --{name.replace('_', '-')} {value}"
            ) from None
        except NotReachedError as error:
            raise CapUnknownError(str(error)) from None
        except UnusableAnswerError:
            return  # some releases set it and then answer 500


def _cap_of(body: bytes) -> CapState | None:
    # Not chained: the decoder's errors carry the text they failed on.
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    states = answer.get("internal_states") if isinstance(answer, dict) else None
    if not isinstance(states, list) or not states or not isinstance(states[0], dict):
        return None
    first = states[0]
    name = CAP if CAP in first else _OLD_NAME
    values = {_count(state.get(name)) for state in states if isinstance(state, dict)}
    value = values.pop()
    if values or value is None:
        return None
    running = _count(first.get("effective_max_running_requests_per_dp"))
    pp_size = _count(first.get("pp_size")) or _count(answer.get("pp_size"))
    most = running // pp_size if running is not None and pp_size is not None else None
    return CapState(name, value, most)


def _count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_CAP
    return value if is_count and isinstance(value, int) else None
