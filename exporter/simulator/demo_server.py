"""The one door to the simulator: a scenario under way in a folder, at the pace of the wall clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from exporter.simulator.card import SimulatedDriver
from exporter.simulator.log_writers import (
    UNIT,
    JournalWriter,
    LogWriter,
    TextWriter,
    find_journal_remote,
)
from exporter.simulator.processes import write_proc
from exporter.simulator.scenarios import SCENARIOS
from exporter.simulator.simulation import Simulation

_QUIET_SECONDS = 1.5
"""The server is up for so long before clients come, so that the cards are seen idle first."""
_STEP_SECONDS = 0.08


class DemoServer:
    """A server that does not exist, with everything the sources read of a real one.

    Attributes:
        unit: The unit its journal entries carry.
        journal_directory: Folder of journal files; `None` where systemd-journal-remote is missing.
        log_file: The text log in that case, else `None`.
        driver: Its cards; may be asked from another thread.
        proc_root: Stands for /proc.
        simulation: What goes on inside, for tests.
    """

    unit = UNIT

    def __init__(
        self,
        scenario: str,
        directory: Path,
        *,
        seed: int = 0,
        text_log: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepares the folder; nothing is written to the log before `open`.

        Args:
            scenario: A name of `SCENARIOS`.
            directory: An existing folder, which the server fills and never empties.
            seed: The same one gives the same load, costs and noise.
            text_log: Write a text file even where a journal could be written.
            clock: The wall clock, in epoch seconds.

        Raises:
            ValueError: There is no such scenario; the message names those there are.
        """
        if scenario not in SCENARIOS:
            raise ValueError(f"no scenario {scenario!r}; there are: {', '.join(SCENARIOS)}")
        self._clock = clock
        program = None if text_log else find_journal_remote()
        self.journal_directory = directory / "journal" if program else None
        self.log_file = None if program else directory / "sglang.log"
        self.proc_root = directory / "proc"
        write_proc(self.proc_root)
        self.simulation = Simulation(
            SCENARIOS[scenario],
            started_at=clock(),
            seed=seed,
            forged=program is not None,
            quiet_seconds=_QUIET_SECONDS,
        )
        self.driver: SimulatedDriver = self.simulation.driver
        self._writer: LogWriter
        if program is not None and self.journal_directory is not None:
            self.journal_directory.mkdir(exist_ok=True)
            self._writer = JournalWriter(
                program, self.journal_directory, self.simulation.started_at
            )
        else:
            self._writer = TextWriter(directory / "sglang.log")
        self._opened = False

    async def open(self) -> None:
        """Writes what a start prints, with the times it would have had; may be called twice."""
        if not self._opened:
            self._opened = True
            # At least a moment later, so that what happened up to the start lies in the past.
            at = max(self._clock(), self.simulation.started_at + 0.001)
            await self._writer.write(self.simulation.advance(at))

    async def run(self) -> None:
        """Lives until canceled."""
        await self.open()
        while True:
            await asyncio.sleep(_STEP_SECONDS)
            await self._writer.write(self.simulation.advance(self._clock()))

    async def close(self) -> None:
        """Finishes the log; may be called twice."""
        await self._writer.close()
