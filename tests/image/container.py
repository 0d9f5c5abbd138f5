"""Runs an unpacked image as deploy/compose/host.yaml has it run, without a container engine.

Read-only files, its own user with one more group, no privileges and no way to new ones, the host's
processes and network in sight. What is mounted is mounted for that one process.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_RUN = """\
root=$1; shift
mount --bind "$root" "$root"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
while [ "$1" != -- ]; do
  mount --bind "$2" "$root$3"
  mount -o "remount,bind,$1" "$root$3"
  shift 3
done
shift
mount -o remount,bind,ro "$root"
exec setpriv --no-new-privs "$@"
"""


class Mount(NamedTuple):
    """A file or folder of this machine at a place in the container."""

    source: Path
    target: str
    writable: bool = False


class Container:
    """An image's files and what its configuration says of running them."""

    def __init__(
        self, root: Path, config: Mapping[str, Any], mounts: Sequence[Mount], group: int
    ) -> None:
        """Makes the places to mount on, as a container engine does; starts nothing.

        Args:
            root: The unpacked image.
            config: The image's own configuration.
            mounts: What comes from this machine.
            group: What `group_add` would be: the group that may read the journal.
        """
        self._root, self._config, self._mounts, self._group = root, config, mounts, group
        for mount in mounts:
            place = root / mount.target.removeprefix("/")
            if mount.source.is_dir():
                place.mkdir(parents=True, exist_ok=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()

    def program(self, env: Mapping[str, str]) -> list[str]:
        """The command line that becomes the image's ENTRYPOINT, without CMD, once it is run."""
        return self.command(self._config["Entrypoint"], env)

    def healthcheck(self, env: Mapping[str, str]) -> list[str]:
        """The command line that becomes the image's HEALTHCHECK."""
        kind, *command = self._config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return self.command(command, env)

    def command(self, command: Sequence[str], env: Mapping[str, str]) -> list[str]:
        """The command line that becomes `command` in the container, in the same process."""
        mounts = [
            word
            for mount in self._mounts
            for word in ("rw" if mount.writable else "ro", str(mount.source), mount.target)
        ]
        user = f"--userspec={self._config['User']}"
        environment = [*self._config["Env"], *(f"{key}={value}" for key, value in env.items())]
        chroot = [shutil.which("chroot") or "chroot", user, f"--groups={self._group}"]
        return [
            *(shutil.which("unshare") or "unshare", "--mount", "--propagation=private"),
            *("/bin/sh", "-euc", _RUN, "sh", str(self._root), *mounts, "--"),
            *(*chroot, str(self._root), "/usr/bin/env", "-i", *environment, *command),
        ]
