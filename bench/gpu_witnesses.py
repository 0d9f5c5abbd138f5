"""Others that tell a GPU's utilization, asked at the same time: nvitop-exporter, nvidia-smi.

Each gives (instant, share) readings of what it calls GPU utilization, or says why it cannot.
"""

from __future__ import annotations

import importlib.util
import os
import pty
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from prometheus_client.parser import text_string_to_metric_families

PERCENT = 100.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_MEBIBYTES_PER_KIBIBYTE = 1 / 1024


class ProcessMeter:
    """CPU time and memory of a process since the meter was made."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc") / str(pid)
        self._started_at, self._ticks = time.monotonic(), self._read_ticks()

    def cost(self) -> dict[str, float] | None:
        """CPU in percent of one core, resident memory in MiB; `None` if the process is gone."""
        try:
            ticks = self._read_ticks() - self._ticks
            lines = (self._folder / "status").read_text().split("\n")
            (resident,) = (line.split()[1] for line in lines if line.startswith("VmRSS:"))
        except (OSError, ValueError):
            return None
        seconds = time.monotonic() - self._started_at
        return {
            "cpu_percent": round(PERCENT * ticks / _TICKS_PER_SECOND / seconds, 3),
            "resident_mebibytes": round(int(resident) * _MEBIBYTES_PER_KIBIBYTE, 1),
        }

    def _read_ticks(self) -> int:
        # After the name, which may hold spaces: state is field 3, utime 14, stime 15.
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])


class Witness(Protocol):
    """A program that tells the utilization of one GPU."""

    name: str
    absent: str | None
    """Why it gives no readings; `None` if it does."""
    readings: list[tuple[float, float]]

    def look(self) -> None:
        """Takes a reading, if it has to be asked; called once a second."""

    def meter(self) -> ProcessMeter | None:
        """A new meter of its process; `None` if it is not worth one."""

    def close(self) -> None:
        """Ends the program."""


class NvitopExporter:
    """nvitop-exporter at its default interval, scraped."""

    name = "nvitop-exporter"

    def __init__(self, uuid: str, environment: Mapping[str, str], log: Path) -> None:
        self.readings: list[tuple[float, float]] = []
        self.absent: str | None = None
        self._uuid = uuid
        self._process: subprocess.Popen[bytes] | None = None
        if importlib.util.find_spec("nvitop_exporter") is None:
            self.absent = "not installed"
            return
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}/metrics"
        with log.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nvitop_exporter", "--port", str(port)],
                env={**os.environ, **environment},
                stdout=said,
                stderr=said,
            )

    def look(self) -> None:
        """See `Witness`; a scrape that fails is no reading."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            self.absent = f"ended with exit code {self._process.returncode}"
            return
        try:
            with urllib.request.urlopen(self._url, timeout=1) as answer:  # noqa: S310  # our own http URL
                text = answer.read().decode()
        except OSError:
            return
        at = time.time()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if (
                    sample.name.startswith("gpu_utilization_")
                    and sample.labels["uuid"] == self._uuid
                ):
                    self.readings.append((at, sample.value / PERCENT))

    @property
    def pid(self) -> int | None:
        """Of its process; `None` if it does not run."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and running else None

    def meter(self) -> ProcessMeter | None:
        """See `Witness`."""
        return None if self.pid is None else ProcessMeter(self.pid)

    def close(self) -> None:
        """See `Witness`."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


class NvidiaSmi:
    """`nvidia-smi` in a loop of one second."""

    name = "nvidia-smi"

    def __init__(self, uuid: str, environment: Mapping[str, str]) -> None:
        self.readings: list[tuple[float, float]] = []
        self.absent: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if shutil.which("nvidia-smi") is None:
            self.absent = "not installed"
            return
        query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "-lms", "1000"]
        # To a terminal it writes line by line; to a pipe it might hold lines back.
        ours, its = pty.openpty()
        self._process = subprocess.Popen(
            ["nvidia-smi", "-i", uuid, *query], env={**os.environ, **environment}, stdout=its
        )
        os.close(its)
        threading.Thread(target=self._read, args=(ours,), daemon=True).start()

    def _read(self, terminal: int) -> None:
        with os.fdopen(terminal, "rb", buffering=0) as lines:
            while True:
                try:
                    line = lines.readline()
                except OSError:
                    return  # the program has ended
                if not line:
                    return
                if line.strip().isdigit():
                    self.readings.append((time.time(), int(line) / PERCENT))

    def look(self) -> None:
        """See `Witness`."""

    def meter(self) -> ProcessMeter | None:
        """See `Witness`."""
        return None

    def close(self) -> None:
        """See `Witness`."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
