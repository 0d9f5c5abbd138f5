"""The server's processes, as a folder that reads like /proc."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from exporter.simulator.log_text import MAIN_TITLE, scheduler_title
from exporter.simulator.scenarios import STAGES

MAIN_PID = 41_900
DETOKENIZER_PID = 41_950


@dataclass(frozen=True, slots=True)
class Process:
    """One process: its id and its whole command line, arguments parted by spaces."""

    pid: int
    title: str


MAIN = Process(MAIN_PID, MAIN_TITLE)
DETOKENIZER = Process(DETOKENIZER_PID, "sglang::detokenizer")
SCHEDULERS = tuple(Process(MAIN_PID + 11 + rank, scheduler_title(rank)) for rank in range(STAGES))
"""By pp_rank."""


def write_proc(root: Path) -> None:
    """Writes `root/PID/cmdline` for each process: arguments end in NUL, a set title has one."""
    for process in (MAIN, DETOKENIZER, *SCHEDULERS):
        folder = root / str(process.pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cmdline").write_bytes(process.title.replace(" ", "\0").encode() + b"\0")
