"""Installed by `make install-service` and run by a real systemd, with its whole sandbox, undone again.

The driver is the fake one, and pip is spared: the program is that of this checkout. The unit is
what an operator gets; drop-ins say where the fake driver is, and shorten what a test waits for.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.setting_values import DEFAULT_PORT
from tests.fake_nvml import FakeNvml, library
from tests.journal_lives import decode_line
from tests.running import Metrics
from tests.service_installer import CONFIG_PATH, NAME, ROOT, UNIT_PATH, write_python
from tests.systemd_machine import SystemdMachine, why_not

DEVICES = {"nvidia0": (195, 0), "nvidiactl": (195, 255), "nvidia-cap1": (505, 1), "fuse": (10, 229)}
PLACES = """[Service]
Environment=LD_LIBRARY_PATH=/opt/fake FAKE_NVML_CONTROL=/opt/fake/control
ReadWritePaths=/opt/fake
"""
SGLANG = """[Service]
ExecStart=/bin/bash -c 'mkfifo /run/sglang; exec -a sglang::scheduler_PP0 cat <>/run/sglang'
"""
PROBE = """[Service]
Type=oneshot
StateDirectory=
ExecStart=
ExecStart=/bin/bash -c 'for name in nvidia0 nvidiactl nvidia-cap1 fuse null; do \
  read -n0 <>/dev/$name && echo $name opens; done'
"""

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "it can")


class Host:
    """A machine with systemd, two GPUs and an SGLang server whose only stage has one of them."""

    def __init__(self, folder: Path) -> None:
        fake, tools, source = folder / "fake", folder / "tools", folder / "source"
        fake.mkdir()
        tools.mkdir()
        shutil.copytree(ROOT / "exporter", source / "exporter")
        shutil.copy(library(), fake)
        self.nvml = FakeNvml(fake / "control", 2)
        for path in (source, tools, fake, *fake.iterdir()):
            path.chmod(0o777)
        write_python(
            tools / "python", prefix="/opt/python", packages="/opt/packages", source="/opt/source"
        )
        binds = {
            Path(sys.base_prefix): "/opt/python",
            Path(sysconfig.get_path("purelib")): "/opt/packages",
            ROOT: "/opt/checkout",
            source: "/opt/source",
            tools: "/opt/tools",
            fake: "/opt/fake",
        }
        self.machine = SystemdMachine(
            folder, binds=binds, devices=DEVICES, device_groups={505: "nvidia-caps"}
        )
        try:
            self._start()
        except BaseException:
            self.machine.close()
            raise

    def _start(self) -> None:
        self.machine.add_unit("sglang.service", SGLANG)
        self.machine.run("systemctl", "start", "sglang.service")
        self.nvml.control.gpu[1].pids[0] = int(self.machine.show("sglang.service", "MainPID"))
        self.machine.add_unit(f"{NAME}.service.d/places.conf", PLACES)
        self.said = self.make("install-service", "PYTHON=/opt/tools/python")

    def make(self, target: str, *variables: str) -> str:
        """What `make` said in there."""
        return self.machine.run("make", "-C", "/opt/checkout", target, *variables)

    def log(self, line: str) -> None:
        """SGLang's scheduler prints a line."""
        with (self.machine.root / "run" / "sglang").open("r+b", buffering=0) as pipe:
            pipe.write(f"{line}\n".encode())

    def metrics(self) -> Metrics:
        return Metrics.parse(
            self.machine.run("curl", "-sS", f"http://127.0.0.1:{DEFAULT_PORT}/metrics")
        )

    def status(self) -> str:
        return self.machine.show(NAME, "StatusText")


@pytest.fixture(name="host", scope="module")
def _host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.machine.close()


def test_the_installer_starts_it_for_good_and_says_what_to_do_next(host: Host) -> None:
    assert "the exporter runs, and will after a restart" in host.said
    assert host.machine.show(NAME, "ActiveState") == "active"
    assert host.machine.show(NAME, "UnitFileState") == "enabled"
    assert host.machine.run("systemd-analyze", "verify", "--man=no", f"{NAME}.service") == ""


def test_it_reads_journal_gpus_and_titles_of_other_users_from_inside_its_sandbox(
    host: Host,
) -> None:
    """Which is what each of these is for: the group, the device list, no ProtectProc=."""
    queued = 0

    def seen() -> bool:
        # journald knows the title of a process a second after it took it.
        nonlocal queued
        queued += 1
        host.log(decode_line(0, queued=queued))
        return host.status() == "sees 1 stage of sglang and 2 GPUs"

    host.machine.wait_until(seen)
    host.machine.wait_until(lambda: host.metrics().matching("gpu_info", gpu="1", pp_rank="0"))
    metrics = host.metrics()
    assert metrics.total("stage_batches_total") > 0
    assert metrics.total("gpu_up") == 2
    assert metrics.value("exporter_unverified_lines_total", source="journal:sglang") == 0


def test_it_is_nobody_and_can_gain_nothing(host: Host) -> None:
    pid = host.machine.show(NAME, "MainPID")
    status = (host.machine.root / "proc" / pid / "status").read_text()
    said = dict(line.split(":\t") for line in status.split("\n") if ":\t" in line)
    assert "0" not in said["Uid"].split("\t")
    assert said["CapBnd"] == said["CapEff"] == "0" * 16
    assert said["NoNewPrivs"] == "1"
    assert said["Seccomp"] == "2"


def test_it_may_open_the_gpus_and_no_other_device(host: Host) -> None:
    """No driver is behind these nodes: who may open one is told so, who may not is refused."""
    host.machine.add_unit("probe.service", (host.machine.root / UNIT_PATH).read_text())
    host.machine.add_unit("probe.service.d/probe.conf", PROBE)
    host.machine.run("systemctl", "start", "probe")
    said = host.machine.run("journalctl", "--unit=probe", "--output=cat")
    for name in ("nvidia0", "nvidiactl", "nvidia-cap1"):
        assert f"/dev/{name}: No such device or address" in said
    assert "/dev/fuse: Operation not permitted" in said
    assert "null opens" in said


def test_a_reload_takes_the_new_configuration_and_keeps_the_process(host: Host) -> None:
    pid = host.machine.show(NAME, "MainPID")
    configuration = host.machine.root / CONFIG_PATH
    configuration.write_text("servers:\n  - {name: kimi, unit: sglang.service}\n")
    host.machine.run("systemctl", "reload", NAME)
    host.machine.wait_until(
        lambda: "journal:kimi" in host.metrics().label_values("exporter_source_up", "source")
    )
    host.machine.wait_until(lambda: host.machine.show(NAME, "ActiveState") == "active")
    assert host.machine.show(NAME, "MainPID") == pid
    assert host.machine.show(NAME, "NRestarts") == "0"


def test_one_that_hangs_is_restarted_and_goes_on_where_it_was(host: Host) -> None:
    quick = "[Service]\nWatchdogSec=4s\nTimeoutStopSec=1s\nRestartSec=100ms\n"
    host.machine.add_unit(f"{NAME}.service.d/quick.conf", quick)
    host.machine.run("systemctl", "restart", NAME)
    before = host.machine.show(NAME, "MainPID")
    host.machine.run("systemctl", "kill", "--signal=STOP", NAME)
    host.machine.wait_until(lambda: host.machine.show(NAME, "NRestarts") != "0")
    host.machine.wait_until(lambda: host.machine.show(NAME, "ActiveState") == "active")
    assert host.machine.show(NAME, "MainPID") != before
    assert "Watchdog timeout" in host.machine.run("journalctl", "--unit", NAME)


def test_the_undo_stops_it_cleanly_and_keeps_configuration_and_positions(host: Host) -> None:
    assert "are kept" in host.make("uninstall-service")
    assert "inactive" in host.machine.run("systemctl", "is-active", NAME, check=False)
    assert "Deactivated successfully" in host.machine.run("journalctl", "--unit", NAME, "--lines=3")
    assert not (host.machine.root / UNIT_PATH).exists()
    assert not (host.machine.root / "opt" / NAME).exists()
    assert (host.machine.root / CONFIG_PATH).exists()
    assert (host.machine.root / "var/lib/private" / NAME / "positions.json").exists()
