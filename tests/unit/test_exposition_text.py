"""Our text of a scrape beside prometheus_client's own: the same, letter by letter."""

from collections.abc import Iterable

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.process_collector import ProcessCollector

from exporter.exposition_text import text_of
from tests.unit.test_collector import everything

HOSTILE = ("", "a\nb", 'say "no"', "back\\slash", "\u2028é", "0.5", "{}", "\\n")
NUMBERS = (
    0,
    1,
    -1.5,
    1e6,
    1e21,
    1e-9,
    1796032800.123456,
    float("nan"),
    float("inf"),
    float("-inf"),
)


class Families:
    """Some families, as a collector."""

    def __init__(self, *families: Metric) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        return self.families


def hostile() -> Families:
    gauge = GaugeMetricFamily("g", 'A "help"\nof two \\ lines.', labels=("b", "a"))
    for text in HOSTILE:
        gauge.add_metric((text, "x"), 1)
    counter = CounterMetricFamily("c", "Counts.", labels=("n",))
    for number, value in enumerate(NUMBERS):
        counter.add_metric((str(number),), value)
    histogram = HistogramMetricFamily("h", "Spread.", labels=("z",))
    histogram.add_metric(("1",), [("1", 2.0), ("+Inf", 3.0)], sum_value=4.5)
    summary = SummaryMetricFamily("s", "Sum.", labels=("call",))
    summary.add_metric(("x",), 3, 0.006)
    return Families(gauge, counter, histogram, summary, GaugeMetricFamily("one", "One.", value=7))


def test_the_text_is_what_the_library_writes() -> None:
    for families in (Families(*everything().collect()), hostile()):
        assert text_of(families.collect(), open_metrics=False) == generate_latest(families)


def test_openmetrics_is_what_the_library_writes() -> None:
    for families in (Families(*everything().collect()), hostile()):
        assert text_of(families.collect(), open_metrics=True) == generate_openmetrics(families)


def test_the_process_s_own_families_are_written_as_the_library_does() -> None:
    families = Families(*ProcessCollector(registry=None).collect())
    assert text_of(families.collect(), open_metrics=False) == generate_latest(families)
    assert text_of(families.collect(), open_metrics=True) == generate_openmetrics(families)
