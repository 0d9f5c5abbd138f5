"""The running programs: serve, demo, record, replay."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from prometheus_client.exposition import generate_latest

from exporter.collector import SnapshotCollector
from exporter.config import Config, ServerConfig
from exporter.ingest import Feed, Ingest
from exporter.live_sources import live_ingest
from exporter.positions import PositionStore, default_path
from exporter.recent.records import RecentRecords
from exporter.recordings.reader import read_records
from exporter.recordings.writer import RecordingWriter
from exporter.records import LogLine, Record
from exporter.sglang_log import storable
from exporter.simulator import DemoServer
from exporter.sources.recording import RecordingSource
from exporter.stage_map import StageMapper
from exporter.web import WebServer

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 1.0


class CannotRecordError(Exception):
    """The recording cannot be written; the message names the remedy."""


# --- until a signal ----------------------------------------------------------------------------


STOPPING = (signal.SIGTERM, signal.SIGINT)


async def stopped(numbers: Iterable[signal.Signals] = STOPPING) -> None:
    """Returns at a signal; while the loop runs, none of these does anything else, however often."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


def ignore_signals(numbers: Iterable[signal.Signals] = STOPPING) -> None:
    """For the rest of the process, after a clean end: a second one must not cut short what is left.

    Not before it: for a moment each of these ends the process.
    """
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


async def _first_of(*tasks: asyncio.Task[None]) -> None:
    """Waits for the first task to end, cancels the rest and raises what went wrong in any."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


async def _serve(ingest: Ingest, recent: RecentRecords, config: Config, greeting: str) -> None:
    """Serves until a signal; an input that ended for good (stdin, a recording) is served on."""
    server = WebServer(ingest, lambda seconds: recent.recording(seconds, ingest.model.levels()))
    await server.start(config)
    log.info(greeting, f"http://{config.listen_host or '127.0.0.1'}:{server.port}")
    if config.listen_host is None:
        log.info("it answers on all addresses of this machine; --listen ADDRESS:PORT narrows that")
    reading = asyncio.create_task(ingest.run(), name="ingest")
    stopping = asyncio.create_task(stopped(), name="signals")
    try:
        await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
            await stopping
    finally:
        for task in (stopping, reading):
            task.cancel()
        await asyncio.gather(reading, stopping, return_exceptions=True)
        await server.close()
        log.info("stopped")
        if not stopping.cancelled():
            ignore_signals()


# --- programs ----------------------------------------------------------------------------------


async def serve(config: Config) -> None:
    """Runs the exporter until SIGTERM or SIGINT.

    Raises:
        CannotListenError: The address is taken.
        StateFileInUseError: Another exporter keeps its positions in the same file.
        FatalSourceError: Only a new process helps.
    """
    positions = PositionStore(config.state_file or default_path(os.environ))
    recent = RecentRecords(time.time)
    try:
        ingest = live_ingest(config, positions=positions, tap=recent.keep)
        await _serve(ingest, recent, config, "serving on %s/metrics")
    finally:
        positions.close()


async def demo(scenario: str, config: Config, directory: Path) -> None:
    """Runs the exporter against a simulated PP8 server and eight simulated GPUs."""
    world = DemoServer(scenario, directory)
    if world.journal_directory is not None:
        server = ServerConfig(name="sglang", unit=world.unit)
    else:
        server = ServerConfig(name="sglang", files=(str(world.log_file),))
        log.warning("systemd-journal-remote is not installed: the demo writes a plain log file")
    config = replace(
        config,
        servers=(server,),
        journal_directory=world.journal_directory,
        from_start=True,
        nvml=True,
    )
    recent = RecentRecords(time.time)
    ingest = live_ingest(config, driver=world.driver, proc_root=world.proc_root, tap=recent.keep)
    running = asyncio.create_task(world.run(), name="simulation")
    serving = asyncio.create_task(
        _serve(ingest, recent, config, f"demo of {scenario!r} on %s (metrics on /metrics)"),
        name="serve",
    )
    try:
        await _first_of(serving, running)
    finally:
        await world.close()


@contextlib.contextmanager
def recording_to(
    output: Path, option: str = "--output", clock: Callable[[], float] = time.time
) -> Iterator[RecordingWriter]:
    """A recording that is made meanwhile; `option` is what names the file on the command line.

    It takes its name at the end, if it holds anything: after an error, or with nothing seen, an
    earlier recording of that name stays.

    Raises:
        CannotRecordError: The file cannot be created, or not be finished.
    """
    writer = _open_recording(output, option, clock)
    if writer.growing != output:
        log.info("the recording is %s until it is whole", writer.growing)
    try:
        yield writer
    except BaseException:
        _leave(writer)
        raise
    if not writer.lines:
        _leave(writer)
        log.warning("nothing was seen: no recording was written to %s", output)
        return
    try:
        writer.close()
    except OSError as error:
        raise CannotRecordError(
            f"cannot finish the recording {output}: {error.strerror}; what was written is in "
            f"{writer.growing}"
        ) from error


def _open_recording(output: Path, option: str, clock: Callable[[], float]) -> RecordingWriter:
    is_device = output.exists() and not output.is_file()
    if not (is_device or output.name.endswith((".jsonl", ".jsonl.gz"))):
        raise CannotRecordError(
            f"cannot write a recording to {output}: its name must be like NAME.jsonl or "
            f"NAME.jsonl.gz; give another with {option}"
        )
    try:
        return RecordingWriter(output, clock=clock)
    except OSError as error:
        raise CannotRecordError(
            f"cannot write the recording {output}: {error.strerror}; name a file in a folder that "
            f"exists and may be written, with {option}"
        ) from error


def _leave(writer: RecordingWriter) -> None:
    """Ends a recording that is not whole, and says where it is."""
    try:
        left = writer.leave()
    except OSError:  # it ended because the disk is full
        left = writer.growing
    if left is not None:
        log.warning("the recording is not whole; what was seen until then is in %s", left)


def keep(writer: RecordingWriter, made: Record, line: LogLine | None) -> None:
    """Writes what reached the model to a recording; of a log line, what may be stored of it.

    Raises:
        OSError: The disk is full or gone.
    """
    if line is None or line.facts_only:
        writer.write(made)
    elif (text := storable(line.message)) is not None:
        writer.write_log(line, text)


async def record(config: Config, seconds: float, output: Path) -> None:
    """Writes what the sources say to a recording for a while, or until a signal.

    Raises:
        CannotRecordError: The recording cannot be written, or there was nothing to write.
        FatalSourceError: A source cannot be read by this process.
    """
    with recording_to(output) as writer:
        failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def tap(made: Record, line: LogLine | None) -> None:
            try:
                keep(writer, made, line)
            except OSError as error:  # the disk is full: no source is to blame
                if not failure.done():
                    failure.set_exception(error)

        async def failed() -> None:
            await failure

        ingest = live_ingest(config, tap=tap)
        stopping = asyncio.create_task(stopped(), name="signals")
        await _first_of(
            asyncio.create_task(ingest.run(), name="ingest"),
            stopping,
            asyncio.create_task(failed(), name="disk"),
            asyncio.create_task(_progress(ingest, writer, seconds), name="progress"),
        )
        if not stopping.cancelled():
            ignore_signals()
    if writer.lines == 0:
        raise CannotRecordError("nothing was seen, see the warnings above")
    sys.stderr.write(f"\nwrote {writer.lines} lines to {output}\n")


async def _progress(ingest: Ingest, writer: RecordingWriter, seconds: float) -> None:
    """Says once a second how far a recording is; returns when its time is over."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, PROGRESS_SECONDS))
        writer.advance()
        waiting = "; ".join(f"{name}: {why}" for name, why in ingest.waiting_for().items())
        done = min(1.0, 1.0 - (end - time.monotonic()) / seconds)
        line = f"recording {done:4.0%}, {writer.lines} lines {waiting}"
        sys.stderr.write(f"\r{line:<79}" if sys.stderr.isatty() else line + "\n")
        sys.stderr.flush()


def replay_once(path: Path) -> str:
    """The exposition of the instant of a recording's last record.

    Raises:
        RecordingError: It is no recording this version can read.
    """
    reader = read_records(path)
    source = RecordingSource(path)
    source.health = reader.health
    ingest = Ingest((Feed(source),), mapper=StageMapper(()), clock=lambda: reader.newest_at or 0.0)
    for made in reader:
        ingest.handle(made)
    summary = reader.summary()
    if summary:
        log.warning("%s", summary)
    ingest.finish()
    snapshot = ingest.snapshot()
    return generate_latest(SnapshotCollector(snapshot, ingest.state(snapshot), None)).decode()


async def replay(path: Path, config: Config) -> None:
    """Serves a recording at the speed it was made; after its end, its last instant."""
    source = RecordingSource(path)
    recent = RecentRecords(source.now)
    ingest = Ingest((Feed(source),), mapper=StageMapper(()), clock=source.now, tap=recent.keep)
    await _serve(ingest, recent, config, f"replaying {path} on %s/metrics")
