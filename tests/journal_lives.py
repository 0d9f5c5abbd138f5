"""A server that goes on logging while the exporter beside it lives, is killed and lives again.

    with JournalWriter(folder / "journal") as writer, BusyServer(writer, seed) as server:
        lives = Lives(folder, server, random.Random(seed))
        lives.begin()
        for _ in range(5):
            lives.live()
            lives.disturb()
        toll = lives.end()

The truth is what `journalctl` reads of the same files. A life counts with the last answer that its
client received whole, as Prometheus would have it.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from tests.journal_writer import SUPPRESSED_MESSAGE_ID, JournalWriter
from tests.running import Metrics, RunningExporter

STAGES = 8
TICK_SECONDS = 0.02
LINES_A_TICK = 4
UNIT = "sglang.service"
MAIN = "/usr/bin/python -m sglang.launch_server --model-path /models/demo --pp-size 8"
MAIN_PID = 100
_BATCH = re.compile(r"\[[0-9-]+ [0-9:]+ PP(\d)\] (Decode|Prefill) batch, ")
_CURSOR_TIME = re.compile(r";t=([0-9a-f]+)")
_TITLE = re.compile(r"sglang::scheduler_PP(\d)")

Counts = Counter[tuple[str, ...]]
"""("lines",), ("suppressed",), ("rejected", reason) or (mode, pp_rank)."""


def stamped(text: str, pp_rank: int | None = None) -> str:
    rank = "" if pp_rank is None else f" PP{pp_rank}"
    return f"[2026-11-30 08:50:23{rank}] {text}"


def decode_line(pp_rank: int, running: int = 4, queued: int = 0) -> str:
    return stamped(
        f"Decode batch, #running-req: {running}, #token: {100 * running}, token usage: 0.05, "
        f"cuda graph: True, gen throughput (token/s): 248.10, #queue-req: {queued}",
        pp_rank,
    )


def prefill_line(pp_rank: int, seqs: int = 1) -> str:
    return stamped(
        f"Prefill batch, #new-seq: {seqs}, #new-token: {64 * seqs}, #cached-token: 0, "
        f"token usage: 0.05, #running-req: 3, #queue-req: 0, cuda graph: False",
        pp_rank,
    )


class BusyServer:
    """Logs about 200 lines a second from a thread: batches of eight stages, noise, forgeries."""

    def __init__(self, writer: JournalWriter, seed: int) -> None:
        self.writer = writer
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="server")

    def __enter__(self) -> Self:
        self._start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[JournalWriter]:
        """The writer, with everything readable and nothing new to come meanwhile."""
        with self._lock:
            self.writer.flush()
            yield self.writer

    def _start(self) -> None:
        write = self.writer.write
        write(stamped("server_args={'pp_size': 8, 'tp_size': 1}"), pid=MAIN_PID, cmdline=MAIN)
        for rank in range(STAGES):
            self._batch(prefill_line(rank), rank)
        write(stamped("The server is fired up and ready to roll!"), pid=MAIN_PID, cmdline=MAIN)

    def _go_on(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            with self._lock:
                for _ in range(LINES_A_TICK):
                    self._line()
                self.writer.send()

    def _line(self) -> None:
        chance, rank = self._chance, self._chance.randrange(STAGES)
        kind = chance.random()
        if kind < 0.55:
            self._batch(decode_line(rank, chance.randrange(1, 40)), rank)
        elif kind < 0.7:
            self._batch(prefill_line(rank, chance.randrange(1, 5)), rank)
        elif kind < 0.75:
            self.writer.write(decode_line(rank), pid=MAIN_PID, cmdline=MAIN)
        elif kind < 0.8:
            self._batch(decode_line((rank + 1) % STAGES), rank)
        elif kind < 0.82:
            self.writer.write_suppressed(chance.randrange(1, 100))
        else:
            self.writer.write('INFO: 127.0.0.1 - "GET /health"', pid=MAIN_PID, cmdline=MAIN)

    def _batch(self, text: str, rank: int) -> None:
        self.writer.write(text, pid=200 + rank, cmdline=f"sglang::scheduler_PP{rank}")


# --- the truth ---------------------------------------------------------------------------------


Position = dict[str, object]


class Entry(NamedTuple):
    """One entry as journalctl reads it; its time, unique here, is its name."""

    cursor: str
    counts: tuple[tuple[tuple[str, ...], int], ...]
    """What it has to count as."""
    is_damaged: bool


Entries = dict[int, Entry]
"""By `__REALTIME_TIMESTAMP`, in microseconds."""


def journal_entries(directory: Path) -> Entries:
    """Every entry that journalctl can read of the unit, and journald's own about it."""
    matches = [f"_SYSTEMD_UNIT={UNIT}", "+", f"MESSAGE_ID={SUPPRESSED_MESSAGE_ID}"]
    command = ["journalctl", f"--directory={directory}", "--output=json", "--all", "--quiet"]
    done = subprocess.run([*command, *matches], capture_output=True, check=False)
    read = (json.loads(line) for line in done.stdout.split(b"\n") if line)
    return {int(fields["__REALTIME_TIMESTAMP"]): _entry(fields) for fields in read}


def _entry(fields: dict[str, str]) -> Entry:
    """Fields are missing where the journal was damaged."""
    message = fields.get("MESSAGE", "")
    counts: list[tuple[tuple[str, ...], int]] = []
    if message.startswith("Suppressed "):
        counts.append((("suppressed",), int(fields.get("N_DROPPED", 1))))
    else:
        counts.append((("lines",), 1))
        counts += _batch_counts(message, fields.get("_CMDLINE", ""))
    return Entry(fields["__CURSOR"], tuple(counts), is_damaged=not message)


def _batch_counts(message: str, command_line: str) -> list[tuple[tuple[str, ...], int]]:
    batch, title = _BATCH.match(message), _TITLE.fullmatch(command_line)
    if batch is None:
        return []
    if title is None:
        return [(("rejected", "not_scheduler"), 1)]
    if title[1] != batch[1]:
        return [(("rejected", "rank_mismatch"), 1)]
    return [((batch[2].lower(), batch[1]), 1)]


def counts_of(metrics: Metrics) -> Counts:
    """What a scrape shows of the same."""
    counts: Counts = Counter()
    counts["lines",] = round(metrics.total("exporter_journal_lines_total"))
    counts["suppressed",] = round(metrics.total("exporter_journal_suppressed_messages_total"))
    for (_, labels), value in metrics.matching("exporter_rejected_lines_total").items():
        counts["rejected", dict(labels)["reason"]] = round(value)
    for (_, labels), value in metrics.matching("stage_batches_total").items():
        counts[dict(labels)["mode"], dict(labels)["pp_rank"]] = round(value)
    return counts


# --- the lives ---------------------------------------------------------------------------------


@dataclass
class Toll:
    """What became of the lines of one run.

    Attributes:
        lives: Processes that were started.
        cut: Scrapes whose answer did not arrive because of the kill.
        gaps: `journal_gaps_total`, summed over the lives.
        vanished: Entries that the journal lost before they were read.
        unseen: Entries up to a position that was saved for an answer which the kill kept back.
        counted: What the lives show in sum.
        expected: What they should.
    """

    lives: int = 0
    cut: int = 0
    gaps: int = 0
    vanished: int = 0
    unseen: int = 0
    counted: Counts = field(default_factory=Counter)
    expected: Counts = field(default_factory=Counter)

    @property
    def lines(self) -> int:
        """Entries the exporter had to count."""
        return self.expected["lines",]

    @property
    def lost(self) -> int:
        """Counts that are missing."""
        return sum((self.expected - self.counted).values())

    @property
    def doubled(self) -> int:
        """Counts too many."""
        return sum((self.counted - self.expected).values())


class Lives:
    """Runs one exporter after the other on the same state file and adds up what they showed."""

    def __init__(
        self, folder: Path, server: BusyServer, chance: random.Random, *options: str
    ) -> None:
        self.toll = Toll()
        self._folder = folder
        self._server = server
        self._chance = chance
        self._directory = server.writer.directory
        self._state = folder / "positions.json"
        self._args = [
            "serve",
            f"--unit={UNIT}",
            f"--journal-dir={self._directory}",
            f"--state-file={self._state}",
            "--no-nvml",
            *options,
        ]
        self._entries: Entries = {}
        self._to_count: Entries = {}
        self._received: Metrics | None = None
        self._received_at: Position = {}
        """The position behind the last answer that arrived, of this life or an earlier one."""
        self._is_cut = False
        self._must_tell_gap = False

    def begin(self) -> None:
        """The first life, killed as soon as it has saved where it began."""
        with self._exporter() as exporter:
            exporter.wait_until(self._saved)
            self._received_at = self._saved()
            with self._server.paused():
                unread = self._unread(self._look())
            self._to_count = {at: self._entries[at] for at in unread}

    def live(self) -> None:
        """One life with a few scrapes; its end comes at any moment, maybe within a scrape."""
        with self._exporter() as exporter:
            if self._must_tell_gap:
                self._receive(exporter.wait_for(_tells_gap))
                self._must_tell_gap = False
            for _ in range(self._chance.randrange(4)):
                time.sleep(self._chance.uniform(0.0, 0.2))
                self._receive(exporter.metrics())
                self._disturb_alive(exporter)
            time.sleep(self._chance.uniform(0.0, 0.2))
            if self._chance.random() < 0.6:
                self._die_in_a_scrape(exporter)
            exporter.kill()
        self._bury()

    def disturb(self) -> None:
        """What happens to the journal while no exporter runs."""
        with self._server.paused() as writer:
            disturbances: list[Callable[[], object]] = [
                lambda: None,
                writer.rotate,
                writer.vacuum,
                lambda: writer.vacuum(everything=True),
                lambda: writer.corrupt_tail(size=self._chance.choice([64, 4096, 40_000])),
                lambda: writer.corrupt_tail(truncate=True),
            ]
            unread = self._unread(self._look())
            self._chance.choice(disturbances)()
            left = journal_entries(self._directory)
            for realtime_us in unread:
                entry = left.get(realtime_us)
                if entry is None:
                    del self._to_count[realtime_us]
                    self.toll.vanished += 1
                else:
                    self._to_count[realtime_us] = entry
                self._must_tell_gap = self._must_tell_gap or entry is None or entry.is_damaged
        time.sleep(self._chance.uniform(0.0, 0.2))

    def end(self) -> Toll:
        """The last life, which reads everything; what came of it all."""
        with self._server.paused(), self._exporter() as exporter:
            self._look()
            self._read_to_the_end(exporter)
            assert self._received is not None
            assert _tells_gap(self._received) or not self._must_tell_gap
        self._bury()
        for entry in self._to_count.values():
            self.toll.expected.update(dict(entry.counts))
        return self.toll

    # --- one life ------------------------------------------------------------------------------

    def _exporter(self) -> RunningExporter:
        self.toll.lives += 1
        self._received, self._is_cut = None, False
        return RunningExporter(self._args, self._folder)

    def _receive(self, metrics: Metrics) -> None:
        self._received, self._received_at = metrics, self._saved()

    def _die_in_a_scrape(self, exporter: RunningExporter) -> None:
        """`kill -9` 0 to 12 ms after a request went out; its answer may arrive all the same."""
        received: list[Metrics] = []

        def scrape() -> None:
            try:
                received.append(exporter.metrics())
            except (OSError, EOFError, http.client.HTTPException):
                return  # cut

        client = threading.Thread(target=scrape, name="client")
        client.start()
        time.sleep(self._chance.uniform(0.0, 0.012))
        exporter.kill()
        client.join()
        if received:
            self._receive(received[0])
        else:
            self.toll.cut += 1
            self._is_cut = True

    def _disturb_alive(self, exporter: RunningExporter) -> None:
        kind = self._chance.random()
        if kind < 0.2:
            with self._server.paused() as writer:
                writer.rotate()
        elif kind < 0.3:
            with self._server.paused() as writer:
                self._look()
                self._read_to_the_end(exporter)
                writer.rotate()
                writer.vacuum()

    def _read_to_the_end(self, exporter: RunningExporter) -> None:
        """Scrapes until the newest entry was read; nothing may be written meanwhile."""

        def scrape() -> bool:
            self._receive(exporter.metrics())
            return not self._unread(self._to_count)

        exporter.wait_until(scrape)

    def _bury(self) -> None:
        """Adds a life to the sum, and what was saved for an answer that the kill kept back."""
        if self._received is not None:
            self.toll.counted.update(counts_of(self._received))
            self.toll.gaps += round(self._received.total("exporter_journal_gaps_total"))
        saved = self._saved()
        if saved == self._received_at:
            return
        assert self._is_cut, "a position moved with no answer to a scrape"
        with self._server.paused():
            self._look()
        unread = self._unread(self._to_count)
        self._received_at = saved
        for realtime_us in unread - self._unread(self._to_count):
            del self._to_count[realtime_us]
            self.toll.unseen += 1

    # --- the journal ---------------------------------------------------------------------------

    def _look(self) -> Entries:
        """Takes note of what is new in the journal."""
        entries = journal_entries(self._directory)
        new = {at: entry for at, entry in entries.items() if at not in self._entries}
        self._entries |= new
        self._to_count |= new
        return entries

    def _saved(self) -> Position:
        try:
            positions = json.loads(self._state.read_bytes())["positions"]
        except FileNotFoundError:
            return {}
        return dict(positions.get("journal:sglang", {}))

    def _unread(self, entries: Entries) -> set[int]:
        """Which of them lie behind the position of the last answer that arrived."""
        cursor, since_us = self._received_at.get("cursor"), self._received_at.get("since_us")
        if isinstance(since_us, int):
            return {at for at in entries if at >= since_us}
        # By its time: where the entry was damaged since, the rest of its cursor is another one.
        read_to = _CURSOR_TIME.search(str(cursor))
        assert read_to is not None, cursor
        return {at for at in entries if at > int(read_to[1], 16)}


def _tells_gap(metrics: Metrics) -> bool:
    return metrics.total("exporter_journal_gaps_total") >= 1
