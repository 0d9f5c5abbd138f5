"""A real systemd as PID 1 of its own namespaces, over this machine's files: nothing here is changed.

    with SystemdMachine(tmp_path) as machine:
        machine.run("systemctl", "start", "my.service")

It sees this machine's root through an overlay, and has a process tree, a network, device nodes,
control groups and units of its own: journald's, and what is installed or added there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

PATIENCE_SECONDS = 60.0
_SYSTEMD = Path("/lib/systemd/systemd")
_LIBRARY = Path("/lib/systemd/system")
_JOURNALD_UNITS = (
    "systemd-journald.service",
    "systemd-journald.socket",
    "systemd-journald-dev-log.socket",
)

_NAMESPACES = ("--mount", "--pid", "--fork", "--uts", "--ipc", "--net", "--cgroup", "--kill-child")
_TRY = """
set -eu
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
"""
_BOOT = """
set -eu
work=$1 devices=$2 units=$3
shift 3
mount --make-rprivate /
mount -t tmpfs tmpfs "$work"
root=$work/root
mkdir "$work/upper" "$work/work" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$root"
mount -t proc proc "$root/proc"
mount --bind "$devices" "$root/proc/devices"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for folder in run tmp var/log var/lib dev etc/systemd/system; do
  mount -t tmpfs -o mode=755 tmpfs "$root/$folder"
done
chmod 1777 "$root/tmp"
# What systemd-tmpfiles would do: the group reads.
mkdir -p "$root/run/log/journal"
chgrp systemd-journal "$root/run/log/journal"
chmod 2755 "$root/run/log/journal"
mkdir -p "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
make_node() { mknod -m 666 "$root/dev/$1" c "$2" "$3"; }
make_node null 1 3; make_node zero 1 5; make_node full 1 7; make_node random 1 8
make_node urandom 1 9; make_node tty 5 0
for node in $NODES; do IFS=: read -r name major minor <<END
$node
END
make_node "$name" "$major" "$minor"; done
ln -s /proc/self/fd "$root/dev/fd"
for bind in "$@"; do
  mkdir -p "$root/${bind#*=}"
  mount --bind "${bind%%=*}" "$root/${bind#*=}"
done
mkdir "$root/run/units"
cp --no-dereference "$units"/* "$root/run/units"
cd "$root"
mkdir -p .old
pivot_root . .old
cd /
umount -l /.old
# As a container manager must: what systemd mounts for a service is seen in it.
mount --make-rshared /
path=/run/units:/etc/systemd/system:/usr/local/lib/systemd/system
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_UNIT_PATH=$path \\
  SYSTEMD_LOG_TARGET=journal /lib/systemd/systemd --system --unit=machine.target --show-status=no </dev/null
"""


def _cgroup_root() -> Path | None:
    for line in Path("/proc/mounts").read_text().split("\n"):
        fields = line.split(" ")
        if len(fields) > 3 and fields[2] == "cgroup2" and "rw" in fields[3].split(","):
            return Path(fields[1])
    return None


@functools.cache
def why_not() -> str | None:
    """Why no systemd can be started by hand here; `None` if it can."""
    if os.geteuid() != 0:
        return "a systemd in its own namespaces needs root"
    if not _SYSTEMD.exists() or shutil.which("systemctl") is None:
        return "systemd is not installed"
    root = _cgroup_root()
    if root is None or not os.access(root, os.W_OK):
        return "no cgroup2 is mounted that can be written to"
    if any(shutil.which(tool) is None for tool in ("unshare", "nsenter", "pivot_root", "setpriv")):
        return "util-linux is not installed"
    tried = subprocess.run(
        ["unshare", *_NAMESPACES, "sh", "-c", _TRY], capture_output=True, check=False
    )
    return None if tried.returncode == 0 else f"no namespaces, no overlay: {tried.stderr.decode()}"


class SystemdMachine:
    """From boot to the death of everything in it."""

    def __init__(
        self,
        folder: Path,
        *,
        binds: Mapping[Path, str] | None = None,
        devices: Mapping[str, tuple[int, int]] | None = None,
        device_groups: Mapping[int, str] | None = None,
    ) -> None:
        """Boots.

        Args:
            folder: An existing folder for what it needs here.
            binds: Folders of this machine → where they are seen in there.
            devices: Character device nodes to make: name → major, minor.
            device_groups: What `/proc/devices` says beside what it says here.
        """
        root = _cgroup_root()
        assert root is not None, why_not()
        self._cgroup = root / f"machine-{os.getpid()}-{time.monotonic_ns()}"
        self._cgroup.mkdir()
        machine, units, groups = folder / "machine", folder / "units", folder / "devices"
        machine.mkdir()
        units.mkdir()
        said = Path("/proc/devices").read_text().partition("\n")
        extra = "".join(f"{major:3} {name}\n" for major, name in (device_groups or {}).items())
        groups.write_text(f"{said[0]}\n{extra}{said[2]}")
        nodes = " ".join(f"{name}:{a}:{b}" for name, (a, b) in (devices or {}).items())
        for unit in _JOURNALD_UNITS:
            (units / unit).symlink_to(_LIBRARY / unit)
        for target in ("sysinit", "basic", "shutdown", "network", "multi-user"):
            (units / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        (units / "machine.target").write_text(
            "[Unit]\nDefaultDependencies=no\nRequires=systemd-journald.service\n"
            "After=systemd-journald.service\n"
        )
        enter = 'echo $$ > "$CGROUP/cgroup.procs"; exec "$@"'
        self._log = folder / "boot.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", enter, "sh", "setpriv", "--pdeathsig=KILL", "unshare", *_NAMESPACES]
                + ["sh", "-c", _BOOT, "sh", str(machine), str(groups), str(units)]
                + [f"{here}={there}" for here, there in (binds or {}).items()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "CGROUP": str(self._cgroup), "NODES": nodes},
            )
        try:
            self._init = self._wait_for_systemd()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what it is told -----------------------------------------------------------------------

    @property
    def root(self) -> Path:
        """Its root folder, as seen from here."""
        return Path(f"/proc/{self._init}/root")

    def add_unit(self, name: str, text: str) -> None:
        """Writes a unit, or with a name like `x.service.d/y.conf` a drop-in, and reloads."""
        path = self.root / "run" / "units" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        self.run("systemctl", "daemon-reload")

    def run(self, *command: str, check: bool = True) -> str:
        """Runs a command in there as root; what it printed."""
        done = subprocess.run(
            ["nsenter", f"--target={self._init}", "--all", "--", *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
            env={"PATH": os.environ["PATH"], "SYSTEMD_PAGER": "", "LANG": "C.UTF-8"},
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def show(self, unit: str, name: str) -> str:
        """One property of a unit, as systemd shows it."""
        return self.run("systemctl", "show", f"--property={name}", "--value", unit).strip()

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Looks until the condition holds.

        Raises:
            AssertionError: It did not in time; with the end of the journal.
        """
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert self._process.poll() is None, "the machine ended"
            assert time.monotonic() < give_up_at, self.run("journalctl", "--lines=40", check=False)
            time.sleep(0.1)

    # --- its life ------------------------------------------------------------------------------

    def _wait_for_systemd(self) -> int:
        """The PID of its init, once that is systemd and answers."""
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < give_up_at and self._process.poll() is None:
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
            self._init = int(children.read_text().strip() or 0)
            private = self.root / "run" / "systemd" / "private"
            if self._init and private.exists() and "active" in self._state():
                return self._init
            time.sleep(0.05)
        raise AssertionError(f"systemd did not start: {self._log.read_text()}")

    def _state(self) -> str:
        return self.run("systemctl", "is-active", "machine.target", check=False)

    def close(self) -> None:
        """Kills everything in it; may be called twice."""
        with contextlib.suppress(FileNotFoundError):
            (self._cgroup / "cgroup.kill").write_text("1")
        self._process.wait(PATIENCE_SECONDS)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while self._cgroup.exists() and time.monotonic() < give_up_at:
            for folder, _, _ in os.walk(self._cgroup, topdown=False):
                with contextlib.suppress(OSError):  # the kernel lets go of the dead one by one
                    Path(folder).rmdir()
