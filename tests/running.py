"""Runs the exporter as a process, as an operator would, and reads what it serves.

    with RunningExporter(["serve", "--stdin"], tmp_path, fake.environment()) as running:
        running.wait_for(lambda metrics: metrics.value("gpu_up", gpu="3") == 1)
        running.kill()

Everything it writes stays in the folder it is given: state, temporary files, what it said on
stderr. A second one in the same folder continues where the first one left.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import urllib.response
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "sglang_pipeline_"
TEXT = "text/plain;version=0.0.4"
PROMETHEUS_ACCEPTS = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""The Accept header of Prometheus 2.42."""

EXPORTER = (sys.executable, "-m", "exporter")
"""This checkout's."""
PATIENCE_SECONDS = 100.0
"""How long a busy machine may take over what takes it a moment."""
LOOK_EVERY_SECONDS = 0.1
_PROC = Path("/proc")
_ROOT = Path(__file__).parents[1]

Series = tuple[str, frozenset[tuple[str, str]]]


class Metrics(dict[Series, float]):
    """One scrape: (name, labels) → value. The methods take names with or without the prefix."""

    @classmethod
    def parse(cls, exposition: str) -> Self:
        """Reads the text format."""
        return cls(
            ((sample.name, frozenset(sample.labels.items())), sample.value)
            for family in text_string_to_metric_families(exposition)
            for sample in family.samples
        )

    def matching(self, name: str, **labels: str) -> dict[Series, float]:
        """The series of that name which carry these labels, maybe among others."""
        names, wanted = {name, PREFIX + name}, labels.items()
        return {
            series: value
            for series, value in self.items()
            if series[0] in names and series[1] >= wanted
        }

    def value(self, name: str, **labels: str) -> float | None:
        """The value of the one series that matches; `None` if it is absent."""
        found = self.matching(name, **labels)
        assert len(found) <= 1, f"{name} {labels} matches {len(found)} series"
        return next(iter(found.values()), None)

    def total(self, name: str, **labels: str) -> float:
        """The sum of all series that match; 0 if there is none."""
        return sum(self.matching(name, **labels).values())

    def label_values(self, name: str, label: str, **labels: str) -> set[str]:
        """Every value that label has among the series that match."""
        return {
            value
            for _, pairs in self.matching(name, **labels)
            for key, value in pairs
            if key == label
        }


class Answer(NamedTuple):
    """What the exporter answered to one request."""

    status: int
    content_type: str
    text: str


class RunningExporter:
    """One life of the exporter: from the first line it says to its death.

    Attributes:
        url: `http://127.0.0.1:PORT` (https with TLS), without a slash at the end.
        port: The port the system chose.
        pid: Of the exporter itself.
        process: For what is not offered here.
    """

    def __init__(
        self,
        args: Sequence[str],
        folder: Path,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = EXPORTER,
    ) -> None:
        """Starts it and waits until it listens.

        Args:
            args: Command and options, without `--listen`.
            folder: An existing folder for all it writes; its TMPDIR is `folder/tmp`.
            env: Added to this process's environment.
            program: What is run, where it is not this checkout's exporter by this user.

        Raises:
            AssertionError: It ended, or did not listen in time; with what it said.
        """
        self._temporary = folder / "tmp"
        self._temporary.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "TMPDIR": str(self._temporary),
            "STATE_DIRECTORY": str(folder / "state"),
            **(env or {}),
        }
        with tempfile.NamedTemporaryFile(
            dir=folder, prefix="stderr-", delete=False, mode="wb"
        ) as said:
            self._said = Path(said.name)
            self.process = subprocess.Popen(
                [*program, *args, "--listen", "127.0.0.1:0"],
                stdin=subprocess.PIPE,
                stderr=said,
                env=environment,
                cwd=_ROOT,
            )
        self.pid = self.process.pid
        try:
            self.url = self._wait_until_it_listens()
        except BaseException:
            self.kill()
            raise
        self.port = int(self.url.rpartition(":")[2])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # --- what it serves ------------------------------------------------------------------------

    def get(self, path: str, accept: str = TEXT) -> Answer:
        """Asks as Prometheus does, with gzip; an error status is an answer, too."""
        headers = {"Accept": accept, "Accept-Encoding": "gzip"}
        request = urllib.request.Request(self.url + path, headers=headers)  # noqa: S310  # our own http URL
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:  # noqa: S310  # same
                return _answer(response)
        except urllib.error.HTTPError as error:
            with error:
                return _answer(error)

    def metrics(self) -> Metrics:
        """Scrapes once."""
        answer = self.get("/metrics")
        assert answer.status == 200, answer
        return Metrics.parse(answer.text)

    def wait_for(
        self, predicate: Callable[[Metrics], object], within: float = PATIENCE_SECONDS
    ) -> Metrics:
        """Scrapes until the predicate holds and returns that scrape.

        Raises:
            AssertionError: It did not hold in time, or the exporter ended; with what it said.
        """
        newest = Metrics()

        def look() -> bool:
            nonlocal newest
            newest = self.metrics()
            return bool(predicate(newest))

        self.wait_until(look, within)
        return newest

    def wait_until(self, condition: Callable[[], object], within: float = PATIENCE_SECONDS) -> None:
        """Looks until the condition holds, as long as the exporter lives.

        Raises:
            AssertionError: It did not hold in time, or the exporter ended; with what it said.
        """
        give_up_at = time.monotonic() + within
        while not condition():
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.said}"
            assert time.monotonic() < give_up_at, f"waited {within:g} s in vain: {self.said}"
            time.sleep(LOOK_EVERY_SECONDS)

    @property
    def said(self) -> str:
        """What it wrote to stderr so far."""
        return self._said.read_text(errors="backslashreplace")

    # --- its input and its end -----------------------------------------------------------------

    def feed(self, *lines: str) -> None:
        """Writes whole lines to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
        self.process.stdin.flush()

    def kill(self) -> None:
        """`kill -9`, with no chance to save anything; returns once it is dead."""
        self.process.kill()
        self._bury()

    def terminate(self, within: float = PATIENCE_SECONDS) -> int:
        """SIGTERM; returns the exit code.

        Raises:
            AssertionError: It did not end in time; with what it said.
        """
        self.process.terminate()
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still ran {within:g} s after SIGTERM: {self.said}") from None
        self._bury()
        return self.process.returncode

    def _bury(self) -> None:
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    # --- what it leaves behind -----------------------------------------------------------------

    def relatives(self) -> list[str]:
        """Command lines of the processes that inherited its environment and live on."""
        mark = f"TMPDIR={self._temporary}".encode()
        found = []
        for folder in _PROC.iterdir():
            if not folder.name.isdigit() or int(folder.name) == self.pid:
                continue
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue  # it ended meanwhile, or belongs to somebody else
        return [command for command in found if command]

    def temporary_files(self) -> list[Path]:
        """What lies in its TMPDIR."""
        return sorted(self._temporary.iterdir())

    def _wait_until_it_listens(self) -> str:
        address = re.compile(r"https?://127\.0\.0\.1:[0-9]+(?=[^0-9])")
        self.wait_until(lambda: address.search(self.said))
        found = address.search(self.said)
        assert found is not None
        return found[0]


def _answer(response: urllib.response.addinfourl | urllib.error.HTTPError) -> Answer:
    body = response.read()
    if response.headers.get("Content-Encoding") == "gzip":
        body = gzip.decompress(body)
    return Answer(response.status or 0, response.headers.get("Content-Type", ""), body.decode())


def promtool_complaints(exposition: str) -> str:
    """What `promtool check metrics` says about an exposition; empty when it is content."""
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=exposition, capture_output=True, text=True, check=False)
    silent = done.returncode == 0
    return done.stdout + done.stderr or ("" if silent else f"exit code {done.returncode}")
