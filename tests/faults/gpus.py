"""What NVML answers when a card, or the driver, is in trouble."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tests.fake_nvml import CODES, FakeNvml
from tests.fake_nvml.rig import START, Rig, machine
from tests.faults import Figures, Outcome
from tests.journal_lives import decode_line
from tests.running import Metrics, RunningExporter
from tests.scenarios.test_driver_hangs import (
    test_a_call_that_hangs_ten_seconds_delays_no_scrape_and_loses_no_residency as hang,
)
from tests.scenarios.test_driver_hangs import (
    test_a_driver_updated_under_the_process_ends_it_with_a_remedy as update,
)
from tests.unit.test_gpu_rounds import AT_START, MISMATCH, OF_ONE_GPU, OTHERS, suffer

GPUS = 8
MOST_SECONDS_UNTIL_BACK = 1000
"""The library is started again for one card after 60 s, then less and less often."""
ERRORS = [
    (function, code, from_start)
    for function in OF_ONE_GPU
    for code in sorted(CODES.keys() - {MISMATCH})
    for from_start in (True, False)
    if from_start or function not in AT_START
]


def each_error(folder: Path, times: int) -> Outcome:
    """Each code of each call, from the start or later, on GPU 3; so many of them by chance."""
    chosen = random.Random(7).sample(ERRORS, times)
    exact = 0
    for number, (function, code, from_start) in enumerate(chosen):
        place = folder / str(number)
        place.mkdir()
        with machine(place) as rig:
            suffer(rig, function, code, from_start=from_start)
            exact += all(_is_exact(rig, gpu) for gpu in OTHERS)
    return Outcome(
        {"errors": len(chosen), "the other seven exact": len(chosen)},
        {"errors": len(chosen), "the other seven exact": exact},
    )


def _is_exact(rig: Rig, gpu: int, since: float = START) -> bool:
    """Every sample came out once, and the card was never said to be down."""
    try:
        rig.assert_exact(gpu, since)
    except AssertionError:
        return False
    return rig.states(gpu) == [(True, None)]


def fewer_gpus(folder: Path, times: int) -> Outcome:
    """A card falls off the bus, the library lists seven and renumbers them; then it is back."""
    exact, seen_states = 0, []
    with machine(folder) as rig:
        rig.start()
        rig.round(2)
        for _ in range(times):
            rig.fake.lose(3)
            rig.round()
            rig.fake.control.gpu[3].absent = 1
            rig.round(100)
            rig.fake.lose(3, None)
            rig.fake.control.gpu[3].absent = 0
            back_by = rig.now + MOST_SECONDS_UNTIL_BACK
            while rig.states(3)[-1] != (True, None) and rig.now < back_by:
                rig.round()
        exact = sum(_is_exact(rig, gpu) for gpu in OTHERS)
        seen_states = [reason or "up" for _, reason in rig.states(3)]
    return Outcome(
        {"cards untouched and exact": 7, "GPU 3": ["up"] + ["GPU_IS_LOST", "up"] * times},
        {"cards untouched and exact": exact, "GPU 3": seen_states},
    )


def reloaded(folder: Path, times: int) -> Outcome:
    """The kernel module is taken out and put in again; the log is read on meanwhile."""
    fake = FakeNvml(folder / "nvml", GPUS)
    with RunningExporter(["serve", "--stdin"], folder, fake.environment()) as exporter:
        for number in range(times):
            before = exporter.wait_for(_all_up)
            for gpu in range(GPUS):
                fake.lose(gpu, "DRIVER_NOT_LOADED")
            fake.fault("nvmlInitWithFlags", "DRIVER_NOT_LOADED")
            exporter.wait_for(lambda seen: seen.total("gpu_up") == 0)
            exporter.feed(decode_line(0))
            exporter.wait_for(lambda seen, n=number: _batches(seen) == n + 1)  # type: ignore[misc]  # n is bound here
            for gpu in range(GPUS):
                fake.lose(gpu, None)
            fake.fault("nvmlInitWithFlags", None)
        after = exporter.wait_for(_all_up)
        shares = _shares(exporter.wait_for(lambda seen: _observed(seen) > _observed(after) + 1))
    right = sum(abs(share - 0.5) < 0.05 for share in shares)
    return Outcome(
        {"cards back": GPUS, "resident share of the time seen right": GPUS, "lines": times},
        {
            "cards back": round(after.total("gpu_up")),
            "resident share of the time seen right": right if _never_fell(before, after) else -1,
            "lines": round(_batches(after)),
        },
    )


def _all_up(seen: Metrics) -> bool:
    return seen.total("gpu_up") == GPUS and _observed(seen) > 0


def _batches(seen: Metrics) -> float:
    return seen.total("stage_batches_total")


def _observed(seen: Metrics) -> float:
    found = seen.matching("gpu_observed_seconds_total", signal="utilization").values()
    return min(found, default=0.0)


def _shares(seen: Metrics) -> list[float]:
    return [
        seen.total("gpu_resident_seconds_total", gpu=str(gpu))
        / seen.total("gpu_observed_seconds_total", gpu=str(gpu), signal="utilization")
        for gpu in range(GPUS)
    ]


def _never_fell(before: Metrics, after: Metrics) -> bool:
    return all(
        after.get(series, 0.0) >= value
        for series, value in before.items()
        if series[0].endswith("_total")
    )


def _as_the_test_says(test: Callable[[Path], None], word: str) -> Callable[[Path, int], Outcome]:
    def provoke(folder: Path, times: int) -> Outcome:
        for number in range(times):
            place = folder / str(number)
            place.mkdir()
            test(place)
        expected: Figures = {word: times}
        return Outcome(expected, expected)

    return provoke


updated = _as_the_test_says(update, "processes ended with the remedy")
hung = _as_the_test_says(hang, "50 scrapes answered meanwhile, nothing missed")
