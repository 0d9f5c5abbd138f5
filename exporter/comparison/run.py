"""A report of `diagnose` → what a comparison needs of it. Pure.

In: the object that `as_json` prints; it may come from a file and hold anything. Out: numbers where
there are numbers; what is missing or of another kind is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from exporter.diagnosis.findings import Verdict
from exporter.pipeline.server_facts import count_of
from exporter.records import FactValue

LATENCIES = ("time_to_first_token", "inter_token", "end_to_end")
PERCENTILES = ("p50_seconds", "p99_seconds")

_MOST_CHARS = 80
_MOST = 1e15
_WHOLE = frozenset({"duration", "requests"})
"""How a load ends that was not cut short."""


class ReportError(Exception):
    """It is no report of a diagnosis; the message says what it is."""


@dataclass(frozen=True, slots=True)
class RunLoad:
    """One driven load: what was asked for and what it measured; `None`: not known.

    Attributes:
        streams: Requests kept in flight; `None` of an open loop too.
        failed: Requests that failed in it.
        latencies: Seconds by name, like `inter_token_p99_seconds`.
    """

    streams: int | None = None
    rate_per_second: float | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    failed: int = 0
    ended_by: str | None = None
    latencies: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """One side of a comparison, over its steady window; `None`: not known.

    Attributes:
        layout: "PP8", "TP8", "PP2 TP4".
        streams: Requests kept in flight in the window.
        loads: Every load that was driven, in their order.
        printed_tokens_per_second: Throughput by the log, in the window, of one dp_rank.
        single_stream: Tokens per second of one stream alone.
        is_measured: The working share of every stage is measured; otherwise there is a bound.
        requests: In all micro-batch slots together.
        watts: Mean power of all GPUs of the server together.
    """

    verdict: Verdict
    confidence: float | None
    layout: str | None
    facts: Mapping[str, FactValue]
    pp_size: int | None
    dp_size: int | None
    window_seconds: float | None
    streams: int | None
    loads: tuple[RunLoad, ...]
    printed_tokens_per_second: float | None
    single_stream: float | None
    is_measured: bool
    occupancy_ratio: float | None
    occupancy_at_most_ratio: float | None
    skew_ratio: float | None
    slots: int | None
    effective_microbatches: float | None
    requests: float | None
    gpus: int | None
    gpu_models: tuple[str, ...]
    watts: float | None

    @property
    def may_be_pipeline(self) -> bool:
        """Whether it has more than one stage, for all that is known."""
        return self.pp_size != 1

    @property
    def load(self) -> RunLoad | None:
        """The load the window lies in, by the rule that chose it; `None` where none was driven."""
        inside = [load for load in self.loads if load.streams == self.streams]
        return max(
            inside or self.loads,
            key=lambda load: (load.streams or 0, load.seconds or 0.0),
            default=None,
        )

    @property
    def joules_per_token(self) -> float | None:
        """Energy of all GPUs per output token; power and, where it is printed, rate of the window."""
        rate = self.printed_tokens_per_second if self.dp_size in {None, 1} else None
        if rate is None and self.load is not None:
            rate = self.load.tokens_per_second
        return self.watts / rate if self.watts is not None and rate else None


def run_of(report: object) -> Run:
    """What a report says.

    Raises:
        ReportError: It is none, or that of a run that failed.
    """
    told = _Fields(report)
    verdict, figures = told.text("verdict"), told.inner("figures")
    if verdict is None and (error := told.text("error")) is not None:
        raise ReportError(f"it holds the error of a run that failed: {printable(error)}")
    if verdict not in set(Verdict) or not figures:
        raise ReportError("it is neither a recording nor a report that `diagnose --json` printed")
    log, slots, gpus = figures.inner("log"), figures.inner("slots"), figures.inner("gpus")
    facts = _facts(figures.inner("facts"))
    loads = tuple(_load(_Fields(each)) for each in figures.items("load"))
    pp_size = figures.count("pp_size")
    measured = figures.is_true("measured")
    return Run(
        verdict=Verdict(verdict),
        confidence=told.number("confidence"),
        layout=_layout(pp_size, facts),
        facts=facts,
        pp_size=pp_size,
        dp_size=count_of(facts, "dp_size"),
        window_seconds=figures.number("window_seconds"),
        streams=_streams(figures, loads),
        loads=loads,
        printed_tokens_per_second=log.number("tokens_per_second"),
        single_stream=_single_stream(figures, loads),
        is_measured=measured,
        occupancy_ratio=figures.number("occupancy_ratio") if measured else None,
        occupancy_at_most_ratio=None if measured else figures.number("occupancy_at_most_ratio"),
        skew_ratio=figures.number("skew_ratio") if measured else None,
        slots=slots.count("slots"),
        effective_microbatches=slots.number("effective"),
        requests=slots.number("running_requests"),
        gpus=gpus.count("expected") or gpus.count("seen"),
        gpu_models=tuple(printable(each) for each in gpus.items("models")),
        watts=gpus.number("watts"),
    )


def printable(value: object) -> str:
    """A value out of a file as short text that moves no cursor."""
    match value:
        case None:
            text = "none"
        case bool():
            text = str(value).lower()
        case float():
            text = f"{value:g}"
        case _:
            text = str(value)
    text = "".join(char if char.isprintable() else "?" for char in text[: _MOST_CHARS + 1])
    return text if len(text) <= _MOST_CHARS else text[: _MOST_CHARS - 1] + "…"


class _Fields:
    """The fields of a JSON object, each by its kind; of anything else there are none."""

    def __init__(self, value: object) -> None:
        self._fields: Mapping[str, object] = value if isinstance(value, Mapping) else {}

    def __bool__(self) -> bool:
        return bool(self._fields)

    def all(self) -> Iterable[tuple[str, object]]:
        return self._fields.items()

    def inner(self, key: str) -> _Fields:
        return _Fields(self._fields.get(key))

    def items(self, key: str) -> list[object]:
        value = self._fields.get(key)
        return value if isinstance(value, list) else []

    def text(self, key: str) -> str | None:
        value = self._fields.get(key)
        return value if isinstance(value, str) else None

    def is_true(self, key: str) -> bool:
        return self._fields.get(key) is True

    def number(self, key: str) -> float | None:
        """A finite number, 0 or more."""
        value = self._fields.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if 0 <= value <= _MOST else None

    def count(self, key: str) -> int | None:
        """A whole number, 1 or more."""
        value = self._fields.get(key)
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        return value if 0 < value <= _MOST else None


def _facts(told: _Fields) -> dict[str, FactValue]:
    return {
        printable(key): value
        for key, value in told.all()
        if value is None or isinstance(value, bool | int | float | str)
    }


def _layout(pp_size: int | None, facts: Mapping[str, FactValue]) -> str | None:
    """The sizes above 1, or what they are if none is; `None` unless both are known."""
    ranks, replicas = count_of(facts, "tp_size"), count_of(facts, "dp_size") or 1
    if pp_size is None or ranks is None:
        return None
    sizes = (("PP", pp_size), ("TP", ranks), ("DP", replicas))
    return " ".join(f"{name}{size}" for name, size in sizes if size > 1) or "TP1"


def _streams(figures: _Fields, loads: Sequence[RunLoad]) -> int | None:
    """Of the load in the window; without a window of the load that asked most."""
    if figures.number("window_seconds") is not None:
        return figures.count("concurrency")
    return max((load.streams for load in loads if load.streams is not None), default=None)


def _single_stream(figures: _Fields, loads: Sequence[RunLoad]) -> float | None:
    """The reference, or a load of one stream that was not cut short."""
    reference = figures.number("single_stream_tokens_per_second")
    alone = [load for load in loads if load.streams == 1 and load.ended_by in _WHOLE]
    return alone[-1].tokens_per_second if reference is None and alone else reference


def _load(told: _Fields) -> RunLoad:
    rate = told.number("rate_per_second")
    latencies = {
        f"{name}_{percentile}": seconds
        for name in LATENCIES
        for percentile in PERCENTILES
        if (seconds := told.inner(name).number(percentile)) is not None
    }
    return RunLoad(
        streams=told.count("concurrency") if rate is None else None,
        rate_per_second=rate,
        prompt_tokens=told.count("prompt_tokens"),
        max_tokens=told.count("max_tokens"),
        seconds=told.number("seconds"),
        tokens_per_second=told.number("output_tokens_per_second"),
        failed=_failed(told),
        ended_by=told.text("ended_by"),
        latencies=latencies,
    )


def _failed(told: _Fields) -> int:
    errors = told.inner("errors")
    return sum(errors.count(kind) or 0 for kind, _ in errors.all())
