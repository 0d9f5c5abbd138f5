"""When to do something again: every so often, or later and later."""

from __future__ import annotations


class Due:
    """Says once a period that it is time; the first time at once."""

    def __init__(self) -> None:
        self._last_at = float("-inf")

    def is_due(self, now: float, period_seconds: float) -> bool:
        """Whether the period has passed since it last was; late rounds are not made up for."""
        # Rounds tick about, not exactly, once a second: half a tick early is on time.
        if now < self._last_at + period_seconds - 0.5:
            return False
        self._last_at = now
        return True


class BackOff:
    """Doubles the wait from try to try, up to a longest one."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._wait_seconds = first_seconds
        self._retry_at = float("-inf")

    def may_try(self, now: float) -> bool:
        """Whether the wait since the last failure is over."""
        return now >= self._retry_at

    def fail(self, now: float) -> None:
        """The try failed: the next one has to wait, twice as long as this one had to."""
        self._retry_at = now + self._wait_seconds
        self._wait_seconds = min(2 * self._wait_seconds, self._longest_seconds)

    def reset(self) -> None:
        """It works again: the next failure starts with the shortest wait."""
        self._wait_seconds = self._first_seconds
        self._retry_at = float("-inf")
