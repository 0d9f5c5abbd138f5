"""Runs Debian's Prometheus against targets of a test and asks its HTTP API."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

_READY_WITHIN_SECONDS = 60.0
_LISTENING = 'msg="Listening on"'


def why_not() -> str | None:
    """Why no Prometheus can be started here; `None` if it can."""
    return None if shutil.which("prometheus") else "prometheus is not installed"


class Prometheus:
    """A running Prometheus on loopback, at the port the system chose."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._url = ""
        self.wait_until(self._is_ready, _READY_WITHIN_SECONDS)

    def ask(self, path: str, **parameters: str) -> Any:
        """The `data` of an API answer; `path` is what follows /api/v1/."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=_READY_WITHIN_SECONDS) as response:  # noqa: S310  # our own http URL
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """An instant query: (labels, value) of each series."""
        found = self.ask("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in found]

    def wait_until(self, condition: Callable[[], object], within: float) -> None:
        """Looks until the condition holds, as long as Prometheus lives.

        Raises:
            AssertionError: It did not hold in time, or Prometheus ended; with what it said.
        """
        give_up_at = time.monotonic() + within
        while not condition():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < give_up_at, (
                f"in vain for {within:g} s: {self._log.read_text()}"
            )
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        if not self._url:
            said = [line for line in self._log.read_text().split("\n") if _LISTENING in line]
            if not said:
                return False
            self._url = f"http://{said[0].partition('address=')[2].split()[0]}"
        try:
            with urllib.request.urlopen(self._url + "/-/ready", timeout=5):  # noqa: S310  # our own
                return True
        except OSError:
            return False


@contextmanager
def running_prometheus(
    folder: Path,
    jobs: Mapping[str, tuple[str, int]],
    rules: Sequence[Path] = (),
    *,
    servers_by_job: bool = False,
    more: Mapping[str, Mapping[str, object]] | None = None,
) -> Iterator[Prometheus]:
    """Prometheus with one target a job.

    Args:
        folder: An existing folder for all it writes.
        jobs: Name → (host:port, scrape interval in seconds).
        rules: Rule files, evaluated every second.
        servers_by_job: The label `server` becomes the job's name: demos all serve `sglang`, and
            rules would take them for one pipeline.
        more: Name → further settings of that job.
    """
    configuration = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {
                "job_name": name,
                "scrape_interval": f"{seconds}s",
                "scrape_timeout": f"{min(seconds, 10)}s",
                "static_configs": [{"targets": [target]}],
                "metric_relabel_configs": [_server_named(name)] if servers_by_job else [],
                **(more or {}).get(name, {}),
            }
            for name, (target, seconds) in jobs.items()
        ],
    }
    config, log = folder / "prometheus.yml", folder / "prometheus.log"
    config.write_text(yaml.safe_dump(configuration))
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=said,
            stderr=said,
        )
    try:
        yield Prometheus(process, log)
    finally:
        process.terminate()
        process.wait(_READY_WITHIN_SECONDS)


def _server_named(job: str) -> dict[str, object]:
    """Where a series has a server, it has this one."""
    return {
        "source_labels": ["server"],
        "regex": ".+",
        "target_label": "server",
        "replacement": job,
    }
