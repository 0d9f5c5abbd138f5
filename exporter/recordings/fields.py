"""Typed access to one JSON object of a recording, which may hold anything.

Every mismatch is a `BadLineError` in this module's own words, never in the line's: recordings
hold what servers printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Concatenate, ParamSpec, TypeVar

NAME_LENGTH = 64
"""Longest server name."""
LABEL_LENGTH = 256
"""Longest text that may become a label value."""
LAST_INSTANT = 1e11
"""Latest time, epoch seconds."""
MOST_GPUS = 1024
MOST_WATTS = 10_000.0
EXACT_INTEGER = 1 << 53
"""Whole numbers up to here survive any JSON reader."""

P = ParamSpec("P")
T = TypeVar("T")
Choice = TypeVar("Choice", bound=StrEnum)


class BadLineError(Exception):
    """A line cannot be used; the message says what is wrong without repeating any of its text."""


class Fields:
    """One object; each reader returns what a key holds or raises `BadLineError`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self._values.get(key) is not None

    def number(self, key: str, low: float, high: float) -> float:
        """A finite number within bounds, as a float."""
        value = self._values.get(key)
        # bool is an int to Python; NaN fails every comparison.
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high
        ):
            raise BadLineError(f"`{key}` is not a number from {low:g} to {high:g}")
        return float(value)

    def whole(self, key: str, low: int, high: int) -> int:
        """A whole number within bounds."""
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadLineError(f"`{key}` is not a whole number from {low} to {high}")
        return value

    def text(self, key: str, longest: int) -> str:
        """Any text that is not too long."""
        value = self._values.get(key)
        if not isinstance(value, str) or len(value) > longest:
            raise BadLineError(f"`{key}` is not text of at most {longest} characters")
        return value

    def label(self, key: str, longest: int = LABEL_LENGTH) -> str:
        """Text that may become a label value: not empty, printable."""
        value = self.text(key, longest)
        if not value or not value.isprintable():
            raise BadLineError(f"`{key}` is empty or holds unprintable characters")
        return value

    def labels(self, key: str, most: int, longest: int = LABEL_LENGTH) -> tuple[str, ...]:
        """A list of texts that may become label values."""
        value = self._values.get(key)
        if not isinstance(value, list) or len(value) > most:
            raise BadLineError(f"`{key}` is not a list of at most {most} entries")
        return tuple(Fields({key: entry}).label(key, longest) for entry in value)

    def one_of(self, key: str, choices: type[Choice]) -> Choice:
        """One of a closed set."""
        try:
            return choices(self.text(key, NAME_LENGTH))
        except ValueError as error:
            raise BadLineError(f"`{key}` is none of {', '.join(choices)}") from error

    def instant(self, key: str) -> float:
        """A time in epoch seconds."""
        return self.number(key, 0.0, LAST_INSTANT)

    def gpu(self) -> int:
        """The number of the GPU that the object speaks of."""
        return self.whole("gpu", 0, MOST_GPUS - 1)

    def inner(self, key: str) -> Fields:
        """The object under a key."""
        value = self._values.get(key)
        if not isinstance(value, dict):
            raise BadLineError(f"`{key}` is not an object")
        return Fields(value)

    def each(self, key: str, most: int) -> Iterator[Fields]:
        """The objects of a list, checked one by one."""
        value = self._values.get(key)
        if not isinstance(value, list) or len(value) > most:
            raise BadLineError(f"`{key}` is not a list of at most {most} entries")
        for entry in value:
            if not isinstance(entry, dict):
                raise BadLineError(f"an entry of `{key}` is not an object")
            yield Fields(entry)

    def items(self) -> Iterator[tuple[str, Any]]:
        """Everything the object holds, unchecked."""
        yield from self._values.items()

    def maybe(
        self,
        read: Callable[Concatenate[Fields, str, P], T],
        key: str,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T | None:
        """What `read` gives, or `None` where the key is missing or null."""
        return read(self, key, *args, **kwargs) if self.has(key) else None
