"""What the image does beside a host's journal, driver and server processes; and its demo."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.fake_nvml import FakeNvml, library
from tests.image.container import Container, Mount
from tests.journal_lives import decode_line
from tests.journal_writer import JournalWriter
from tests.running import Metrics, RunningExporter

STAGES = 4
JOURNAL_GROUP = 4242
"""Of the host's group systemd-journal; the image knows no such group."""
_MACHINE_ID = "0123456789abcdef0123456789abcdef"


class _SystemJournal(JournalWriter):
    """Under the name that a reader of the machine's own journal looks for."""

    @property
    def active_file(self) -> Path:
        return self.directory / "system.journal"


def serves_a_host(root: Path, config: Mapping[str, Any], folder: Path) -> float:
    """`serve`, with the journal, the driver and the processes of a host that serves with SGLang.

    Returns how many seconds it took to end after SIGTERM.
    """
    with ExitStack() as stack:
        fake = FakeNvml(folder / "nvml", STAGES)
        fake.path.chmod(0o666)
        journal = stack.enter_context(_SystemJournal(folder / "journal" / _MACHINE_ID))
        pids = [stack.enter_context(_process(_title(rank))) for rank in range(STAGES)]
        for rank, pid in enumerate(pids):
            fake.control.gpu[rank].pids[0] = pid
            journal.write(decode_line(rank), pid=pid, cmdline=_title(rank))
        journal.flush()
        _as_journald_leaves_it(journal)
        container = Container(root, config, _mounts(folder, fake), JOURNAL_GROUP)
        env = {"FAKE_NVML_CONTROL": "/run/nvml"}
        arguments = ["serve", "--from-start"]
        running = stack.enter_context(
            RunningExporter(arguments, folder, program=container.program(env))
        )
        running.wait_for(_sees_stages_and_gpus)
        for rank, pid in enumerate(pids):
            journal.write(decode_line(rank), pid=pid, cmdline=_title(rank))
        journal.flush()
        running.wait_for(lambda seen: seen.total("stage_batches_total") == 2 * STAGES)
        assert running.get("/-/ready").text.startswith("ready\n"), running.get("/-/ready")
        _has_no_privileges(running.pid, config["User"])
        _healthcheck_tells(container, running.url)
        took = _seconds_to_end(running)
        assert (folder / "state" / "positions.json").exists()
        return took


def runs_the_demo(root: Path, config: Mapping[str, Any], folder: Path) -> float:
    """`demo` without anything else: its server writes a plain log, for want of a journal.

    Returns how many seconds it took to end after SIGTERM.
    """
    container = Container(root, config, (), JOURNAL_GROUP)
    with RunningExporter(["demo"], folder, program=container.program({})) as running:
        running.wait_for(lambda seen: len(seen.matching("stage_batches_total", mode="decode")) == 8)
        running.wait_for(lambda seen: len(seen.matching("gpu_up")) == 8)
        return _seconds_to_end(running)


def _mounts(folder: Path, fake: FakeNvml) -> Sequence[Mount]:
    state, machine_id = folder / "state", folder / "machine-id"
    state.mkdir()
    shutil.chown(state, 65532, 65532)
    machine_id.write_text(f"{_MACHINE_ID}\n")
    libraries = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}"
    return (
        Mount(folder / "journal", "/var/log/journal"),
        Mount(machine_id, "/etc/machine-id"),
        Mount(library(), f"{libraries}/libnvidia-ml.so.1"),  # where the NVIDIA runtime puts it
        Mount(fake.path, "/run/nvml", writable=True),
        Mount(state, "/var/lib/sglang-pipeline-exporter", writable=True),
    )


def _title(rank: int) -> str:
    return f"sglang::scheduler_PP{rank}"


@contextmanager
def _process(title: str) -> Iterator[int]:
    """A process of root with a scheduler's command line."""
    sleep = shutil.which("sleep")
    with subprocess.Popen([title, "600"], executable=sleep) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def _as_journald_leaves_it(journal: JournalWriter) -> None:
    """For root and the group alone."""
    for path in (journal.directory.parent, journal.directory):
        shutil.chown(path, 0, JOURNAL_GROUP)
        path.chmod(0o750)
    shutil.chown(journal.active_file, 0, JOURNAL_GROUP)
    journal.active_file.chmod(0o640)


def _sees_stages_and_gpus(seen: Metrics) -> bool:
    ranks = {str(rank) for rank in range(STAGES)}
    return (
        seen.label_values("stage_batches_total", "pp_rank") == ranks
        and seen.label_values("gpu_info", "pp_rank") == ranks
        and len(seen.matching("gpu_power_watts")) == STAGES
        and seen.total("gpu_up") == STAGES
    )


def _has_no_privileges(pid: int, user: str) -> None:
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{pid}/status").read_text().split("\n")
        if ":\t" in line
    )
    uid, _, gid = user.partition(":")
    assert set(status["Uid"].split()) == {uid}
    assert set(status["Gid"].split()) == {gid}
    assert set(status["Groups"].split()) <= {gid, str(JOURNAL_GROUP)}
    assert status["CapEff"] == status["CapPrm"] == "0" * 16
    assert status["NoNewPrivs"] == "1"


def _healthcheck_tells(container: Container, url: str) -> None:
    def status(address: str) -> int:
        command = container.healthcheck({"HEALTHCHECK_URL": f"{address}/-/healthy"})
        return subprocess.run(command, capture_output=True, check=False).returncode

    assert status(url) == 0
    assert status("http://127.0.0.1:1") == 1  # nobody listens there


def _seconds_to_end(running: RunningExporter) -> float:
    began = time.monotonic()
    assert running.terminate() == 0, running.said
    return time.monotonic() - began
