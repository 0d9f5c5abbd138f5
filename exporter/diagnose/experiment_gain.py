"""An experiment → what it gave, as ratios and in sentences. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.diagnose.outcome import Experiment, Outcome
from exporter.diagnosis.findings import Verdict

WORTH = 1.05
"""A change below this is within what two runs of the same load differ by."""

_SPLITS = (Verdict.THUNDERING_HERD, Verdict.UNEVEN_SPLIT, Verdict.OVER_SPLIT)
"""What the setting changes; other gains are not its own."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Output tokens a second, or ratios of them; `None` where not known."""

    all_streams: float | None = None
    each_stream: float | None = None
    """As a request sees it once it decodes."""

    @classmethod
    def of(cls, outcome: Outcome | None) -> Speed:
        """Of the last load; nothing is known where none was driven."""
        if outcome is None or not outcome.points:
            return cls()
        point = outcome.points[-1]
        gap = point.latencies.inter_token
        each = 1.0 / gap.mean_seconds if gap is not None and gap.mean_seconds > 0.0 else None
        return cls(point.output_tokens_per_second, each)

    def over(self, other: Speed) -> Speed:
        """Ratios: this one over another."""
        return Speed(
            _ratio(other.all_streams, self.all_streams), _ratio(other.each_stream, self.each_stream)
        )


def gains(outcome: Outcome, experiment: Experiment) -> Speed:
    """Under the new value over under the old one."""
    return Speed.of(experiment.after).over(Speed.of(outcome))


def predicted_gain(outcome: Outcome) -> float | None:
    """Throughput of an even split over that of the first load, as the diagnosis has it."""
    ratios = {
        finding.verdict: finding.gain.ratio
        for finding in outcome.diagnosis.findings
        if finding.holds and finding.gain is not None
    }
    return next((ratios[verdict] for verdict in _SPLITS if verdict in ratios), None)


def gain_text(outcome: Outcome, experiment: Experiment) -> str:
    """What was measured, beside what was predicted."""
    measured, parts = gains(outcome, experiment), []
    if measured.all_streams is not None:
        parts.append(f"{measured.all_streams:.2f} times the throughput")
    if measured.each_stream is not None:
        parts.append(f"{measured.each_stream:.2f} times the speed of each stream")
    predicted = predicted_gain(outcome)
    if predicted is not None:
        bound = "at most " if outcome.diagnosis.figures.even_split_gain_ratio is None else ""
        parts.append(f"predicted for an even split: {bound}{predicted:.2f}")
    return f"Measured: {', '.join(parts) if parts else 'no gain can be told'}."


def deciding_gain(outcome: Outcome, experiment: Experiment) -> float | None:
    """The gain by which to keep the new value; `None`: it cannot be told."""
    measured = gains(outcome, experiment)
    # At a given rate the clients decide on the throughput: only the speed can change.
    open_loop = outcome.points[-1].plan.rate_per_second is not None
    return measured.each_stream if open_loop else measured.all_streams


def outcome_text(outcome: Outcome, experiment: Experiment) -> str | None:
    """What to do with the new value, or why nothing can be said; `None`: nothing was measured."""
    if experiment.error is not None:
        said = "FAILED: " if experiment.failed else "not finished: "
        return said + experiment.error.removesuffix(experiment.restore_command or "")
    if experiment.after is None:
        return None
    flag = f"--{experiment.setting.replace('_', '-')} {experiment.new}"
    return _conclusion(deciding_gain(outcome, experiment), flag)


def restored_text(experiment: Experiment) -> str:
    """That the server has its old value again, or what to do with the command that gives it."""
    name, old, new = experiment.setting, experiment.old, experiment.new
    if experiment.restore_command is None:
        return f"The server has its old value: {name}={old}."
    return f"THE SERVER MAY STILL HAVE {name}={new}. To put {old} back:"


def _conclusion(gain: float | None, flag: str) -> str:
    if gain is None:
        return "Whether that is worth keeping cannot be told: too little was measured."
    if gain >= WORTH:
        return f"Keep it: start the server with {flag}."
    if gain <= 1.0 / WORTH:
        return f"Do not keep it: the server is slower with {flag}."
    return f"Leave it as it is: {flag} makes no difference that counts."


def _ratio(before: float | None, after: float | None) -> float | None:
    return after / before if before and after is not None else None
