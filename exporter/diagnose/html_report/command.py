"""The arguments of a run → the command that repeats it, without anything secret. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

PROGRAM = "sglang-pipeline-exporter"

_HIDDEN = "***"
_USER = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY = re.compile(r"(?<=[?#]).*", re.DOTALL)


def command_line(argv: Sequence[str]) -> str:
    """The command, quoted for a shell.

    No option takes a key; of an address, what may hold one is hidden: user, password, query.
    """
    return shlex.join([PROGRAM, *(_without_secrets(each) for each in argv)])


def without_user(text: str) -> str:
    """A text whose addresses show neither user nor password."""
    return _USER.sub(_HIDDEN + "@", text)


def _without_secrets(argument: str) -> str:
    if "://" not in argument:
        return argument
    return _QUERY.sub(_HIDDEN, without_user(argument))
