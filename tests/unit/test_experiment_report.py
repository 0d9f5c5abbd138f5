"""What an experiment has shown, in words."""

from __future__ import annotations

from typing import Any

import pytest

from exporter.diagnose.experiment_report import experiment_figures, experiment_lines
from exporter.diagnose.outcome import Experiment, Outcome
from exporter.diagnosis.figures import Figures
from exporter.diagnosis.verdict import diagnose
from exporter.diagnosis.watch import Watch
from exporter.load.failures import FailureKind
from exporter.load.measurements import Measurements
from exporter.load.plan import LoadPlan
from exporter.load.result import EndReason, LoadResult
from exporter.load.streaming import NewTokens

T = 1_796_000_000.0


def outcome(tokens: int | None, gap_seconds: float, **changed: Any) -> Outcome:
    """A minute's load that gave so many tokens, nothing else being known."""
    measured = Measurements()
    measured.add_tokens(NewTokens(T + 1, 1, gap_seconds, first=False))
    errors = changed.pop("errors", {})
    begin = None if tokens is None else T
    end = None if tokens is None else T + 60
    plan = LoadPlan(**changed)
    reason = EndReason.DURATION
    point = LoadResult(plan, reason, begin, end, tokens, 0, 0, errors, {}, 0, measured)
    return Outcome(diagnose(Figures()), Watch(), ("sglang", 0), (point,))


def said(before: Outcome, after: Outcome | None, **changed: Any) -> str:
    tried = Experiment("pp_max_micro_batch_size", 32, 4, after, **changed)
    lines = list(experiment_lines(before, tried))
    assert max(map(len, lines)) <= 80
    return " ".join(lines)


@pytest.mark.parametrize(
    ("tokens", "conclusion"),
    [
        (12_000, "Keep it: start the server with --pp-max-micro-batch-size 4."),
        (3_000, "Do not keep it"),
        (6_060, "Leave it as it is"),
        (None, "cannot be told"),
    ],
)
def test_what_to_do_follows_from_the_throughput(tokens: int | None, conclusion: str) -> None:
    assert conclusion in said(outcome(6_000, 0.3), outcome(tokens, 0.3))


def test_at_a_given_rate_the_speed_of_a_stream_decides() -> None:
    before, after = (outcome(6_000, gap, rate_per_second=2.0) for gap in (0.3, 0.1))
    text = said(before, after)
    assert "3.00 times the speed of each stream" in text
    assert "Keep it" in text


def test_a_value_that_is_not_back_is_told_with_the_reason_and_no_advice() -> None:
    text = said(
        outcome(6_000, 0.3),
        outcome(12_000, 0.3, errors={FailureKind.SERVER_ERROR: 3}),
        error="cannot put it back: curl -X POST",
        failed=True,
        restore_command="curl -X POST",
    )
    assert "FAILED: cannot put it back:" in text
    assert text.endswith("STILL HAVE pp_max_micro_batch_size=4. To put 32 back: curl -X POST")
    assert "3 requests failed: the server failed" in text
    assert "Keep it" not in text


def test_what_was_not_measured_is_not_known() -> None:
    before = outcome(6_000, 0.25)
    figures = experiment_figures(before, Experiment("pp_max_micro_batch_size", 32, 4, None))
    assert figures["gain"] == {"output_tokens_per_second": None, "per_stream": None}
    assert figures["after"] is figures["predicted_gain"] is None
    shown = figures["before"]
    assert isinstance(shown, dict)
    assert shown["output_tokens_per_second"] == 100.0
    assert shown["per_stream_tokens_per_second"] == 4.0
    assert shown["slot_sizes"] is None
