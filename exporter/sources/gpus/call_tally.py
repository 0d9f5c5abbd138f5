"""Driver calls, timed and counted under their library's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from exporter.gpu_driver import LIBRARY_CALLS, MISMATCH_CODE, DriverError
from exporter.records import DriverHealth, FatalSourceError, Signal

P = ParamSpec("P")
T = TypeVar("T")


class CallTally:
    """Counts what the sampling thread asks of the driver.

    Belongs to that thread; others may read `in_call` (replaced as a whole, never changed).

    Attributes:
        in_call: The library function asked now and when it was (monotonic); `None` between calls.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.in_call: tuple[str, float] | None = None
        self._monotonic = monotonic
        self._health = DriverHealth()

    def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a driver method.

        Raises:
            DriverError: What the driver answered; it is counted.
            FatalSourceError: The driver was replaced under this process.
        """
        name = LIBRARY_CALLS[method.__name__]
        started = self._monotonic()
        self.in_call = (name, started)
        try:
            return method(*args, **kwargs)
        except DriverError as error:
            self.count_error(error.call, error.code)
            if error.code == MISMATCH_CODE:
                raise mismatch(error) from error
            raise
        finally:
            self.in_call = None
            counts, seconds = self._health.call_counts, self._health.call_seconds
            counts[name] = counts.get(name, 0) + 1
            seconds[name] = seconds.get(name, 0.0) + self._monotonic() - started

    def count_error(self, call: str, code: str, number: int = 1) -> None:
        """Counts failures of a call by code."""
        errors = self._health.errors
        errors[call, code] = errors.get((call, code), 0) + number

    def count_samples(self, signal: Signal, number: int) -> None:
        """Counts samples read of a signal."""
        samples = self._health.samples
        samples[signal] = samples.get(signal, 0) + number

    def copy(self) -> DriverHealth:
        """The counts so far, for another thread to keep."""
        health = self._health
        return DriverHealth(
            dict(health.call_counts),
            dict(health.call_seconds),
            dict(health.errors),
            dict(health.samples),
        )


def mismatch(error: DriverError) -> FatalSourceError:
    """The one error that ends the process, with its remedy."""
    return FatalSourceError(
        f"cannot read GPUs: {error.call} answered {error.code}: the NVIDIA driver was updated "
        "under a running process; restart the exporter (in a container: recreate it, so that it "
        "gets the new libnvidia-ml.so.1; if it stays, reboot: the old kernel module is loaded)"
    )
