"""The programs beside us: where they are, or why one cannot be had here."""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

NVITOP_EXPORTER = "nvitop-exporter==1.7.2"
START_SECONDS = 30.0
_DEBIAN = {"mtail": "mtail", "prometheus-node-exporter": "prometheus-node-exporter"}


class PeerAbsentError(Exception):
    """A peer is not here; the message says how to get it."""


def debian_program(name: str) -> str:
    """Where a program of Debian's is.

    Raises:
        PeerAbsentError: It is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise PeerAbsentError(f"{name} is not installed: apt-get install {_DEBIAN.get(name, name)}")
    return found


@functools.cache
def nvitop_python() -> Path:
    """The interpreter of an environment with nvitop-exporter alone, made on first use.

    Raises:
        PeerAbsentError: pip could not install it.
    """
    folder = Path(tempfile.mkdtemp(prefix="bench-nvitop-"))
    python = folder / "bin" / "python"
    commands = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", NVITOP_EXPORTER],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip().split("\n") or [""])[-1]
            raise PeerAbsentError(f"{NVITOP_EXPORTER} could not be installed by pip: {said}")
    return python


def free_port() -> int:
    """A port of the loopback nobody listens on now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def serving(
    command: Sequence[str], port: int, said: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a peer until the block ends; from its start on `/metrics` answers at that port.

    Raises:
        PeerAbsentError: It did not come up; with the end of what it said.
    """
    with said.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdout=output,
            stderr=output,
        )
    try:
        _wait_until_it_answers(process, port, said)
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, said: Path) -> None:
    give_up_at = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/metrics", timeout=5
            ) as answer:  # our own http URL
                answer.read()
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > give_up_at:
                text = said.read_text(errors="replace").strip().split("\n")[-1]
                raise PeerAbsentError(
                    f"{Path(process.args[0]).name} did not start: {text}"
                ) from None  # type: ignore[index]  # given as a list
            time.sleep(0.1)


@contextmanager
def nvitop_exporter(
    said: Path, environment: Mapping[str, str]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Runs nvitop-exporter at its default interval (1 s); its process and its port.

    Raises:
        PeerAbsentError: It cannot be had, or did not come up.
    """
    port = free_port()
    command = [str(nvitop_python()), "-m", "nvitop_exporter", "--port", str(port)]
    with serving(command, port, said, environment) as process:
        yield process, port
