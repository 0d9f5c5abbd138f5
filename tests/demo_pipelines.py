"""Demos of several scenarios at once, and a Prometheus that scrapes them all.

with running_demos(folder, ["healthy", "kv_limited"]) as prometheus:
    prometheus.query('up{job="healthy"}')
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.metrics_target import MetricsTarget, SglangMetrics
from tests.prometheus_server import Prometheus, running_prometheus
from tests.running import RunningExporter

SGLANG_JOB = "sglang-itself"
"""The job of SGLang's own metrics."""


@contextmanager
def running_demos(
    folder: Path,
    scenarios: Sequence[str],
    scrape_seconds: int = 1,
    others: Mapping[str, Callable[[], bytes]] | None = None,
    rules: Sequence[Path] = (),
) -> Iterator[Prometheus]:
    """One job a scenario, of its name; one for SGLang's own metrics of the demo's model; others.

    Args:
        folder: An existing folder for all they write.
        scenarios: What `demo --scenario` takes.
        scrape_seconds: How often Prometheus scrapes each.
        others: Job → what it answers to a scrape.
        rules: Rule files; with them each demo's server has the name of its scenario.
    """
    with ExitStack() as stack:
        targets = {}
        for scenario in scenarios:
            own = folder / scenario
            own.mkdir()
            arguments = ["demo", "--scenario", scenario]
            running = stack.enter_context(RunningExporter(arguments, own))
            targets[scenario] = f"127.0.0.1:{running.port}"
        for job, render in {SGLANG_JOB: SglangMetrics().render, **(others or {})}.items():
            targets[job] = stack.enter_context(MetricsTarget(render)).address
        jobs = {name: (target, scrape_seconds) for name, target in targets.items()}
        yield stack.enter_context(
            running_prometheus(folder, jobs, rules, servers_by_job=bool(rules))
        )
