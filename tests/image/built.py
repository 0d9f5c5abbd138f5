"""From nothing to an image: a base by debootstrap under the Dockerfile's name, then the Dockerfile."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from exporter import __version__
from tests.image.surroundings import RELEASE, build_secrets, mirror

ROOT = Path(__file__).parents[2]
IMAGE = f"sglang-pipeline-exporter:{__version__}"
_SLIM = """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
"""
"""What the slim images of Debian leave out."""


class BuildError(Exception):
    """A command of the build failed; the message holds the end of what it said."""


class Builder:
    """Buildah with a storage of its own in a folder."""

    def __init__(self, folder: Path) -> None:
        """Makes nothing yet."""
        self._folder = folder
        # vfs keeps layers as plain folders: nothing is mounted, nothing asked of the kernel.
        self._buildah = [
            *("buildah", "--root", f"{folder}/storage", "--runroot", f"{folder}/run"),
            "--storage-driver=vfs",
        ]
        self._environment = {**os.environ, "TMPDIR": str(folder)}

    def make_base(self) -> None:
        """Debian's packages in the shape of a slim image, tagged as the Dockerfile's FROM."""
        root = self._folder / "base"
        self._run("debootstrap", "--variant=minbase", RELEASE, str(root), mirror())
        (root / "etc/dpkg/dpkg.cfg.d/docker").write_text(_SLIM)
        for left_out in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc"):
            shutil.rmtree(root / left_out)
        for left_out in ("usr/share/man", "usr/share/info", "usr/share/locale"):
            shutil.rmtree(root / left_out)
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, str(root), "/")
        self.buildah("commit", "--quiet", "--rm", container, f"localhost/{base_name()}")
        shutil.rmtree(root)

    def build(self) -> None:
        """Builds as `make image` does, offline but for packages."""
        options = ["--isolation=chroot", "--pull-never", "--quiet", *build_secrets(self._folder)]
        self._environment["BUILDER"] = " ".join([*self._buildah, "bud", "--format=docker"])
        self._run(str(ROOT / "deploy/container/build"), *options)

    def config(self) -> dict[str, Any]:
        """How the image wants to be run: User, Env, Entrypoint, Healthcheck, …"""
        described = json.loads(self.buildah("inspect", "--type", "image", IMAGE))
        config: dict[str, Any] = described["Docker"]["config"]
        return config

    def unpacked(self) -> Path:
        """The image's files, writable without changing the image."""
        container = self.buildah("from", "--pull-never", IMAGE)
        return Path(self.buildah("mount", container))

    def sizes(self) -> dict[str, str]:
        """Name of each image → its size, as `buildah images` says."""
        lines = self.buildah("images", "--format", "{{.Name}} {{.Size}}").split("\n")
        return {name: size.strip() for name, _, size in (line.partition(" ") for line in lines)}

    def buildah(self, *args: str) -> str:
        """What a command of buildah prints, without the last line's end."""
        return self._run(*self._buildah, *args).strip()

    def _run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            said = "\n".join((done.stdout + done.stderr).split("\n")[-40:])
            raise BuildError(f"{command[0]} ended with {done.returncode}:\n{said}")
        return done.stdout


def base_name() -> str:
    """The image that every stage of the Dockerfile begins from."""
    text = (ROOT / "Dockerfile").read_text()
    found: set[str] = set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))
    (name,) = found
    return name
