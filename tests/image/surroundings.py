"""What this machine lets the image test do, and how it reaches packages."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

RELEASE = "bookworm"
_PROGRAMS = ("buildah", "debootstrap", "unshare", "setpriv", "cc")
_APT_SETTINGS = ("Acquire::http", "Acquire::ftp", "Acquire::Check-", "Acquire::Retries")
_PIP_SETTINGS = ("index-url", "extra-index-url", "proxy", "trusted-host", "timeout")
_SECRETS = "/run/secrets"
"""Where a build finds what is handed to it for its duration."""


def why_not() -> str | None:
    """What is missing here, in one sentence; `None` where an image can be built and run."""
    if os.geteuid() != 0:
        return "it needs root"
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    mounting = "mount -t tmpfs tmpfs /mnt && chroot / true"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounting],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return f"this machine does not let root mount: {done.stderr.strip()}"
    if (address := mirror()) is None:
        return f"apt knows no mirror of {RELEASE} here; DEBIAN_MIRROR names one"
    release = f"{address}/dists/{RELEASE}/Release"
    try:
        with urllib.request.urlopen(release, timeout=60) as answer:  # noqa: S310  # http, or a folder
            answer.read()
    except OSError as error:
        return f"{release} cannot be read ({error}); DEBIAN_MIRROR names another mirror"
    return None


@functools.cache
def mirror() -> str | None:
    """Where Debian's packages come from: $DEBIAN_MIRROR, else what apt uses on this machine."""
    if named := os.environ.get("DEBIAN_MIRROR"):
        return named
    asked = ("Component: main", f"Codename: {RELEASE}")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *asked]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return said[0].rstrip("/") if said else None


def build_secrets(folder: Path) -> list[str]:
    """Options of a build that hand it this machine's way to packages: proxy, index, certificates.

    They are there while the build runs, and in no layer. Indexes in local folders are left out: a
    build does not see them.
    """
    apt, pip = folder / "apt.conf", folder / "pip.conf"
    _write_private(apt, "".join(f"{line}\n" for line in _apt_settings()))
    settings = _pip_settings()
    settings["cert"] = f"{_SECRETS}/ca.crt"
    _write_private(
        pip, "[global]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items())
    )
    files = {"apt.conf": apt, "pip.conf": pip, "ca.crt": _certificates()}
    return [f"--secret=id={name},src={path}" for name, path in files.items()]


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


def _apt_settings() -> list[str]:
    if shutil.which("apt-config") is None:
        return []
    said = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True)
    return [line for line in said.stdout.split("\n") if line.startswith(_APT_SETTINGS)]


def _pip_settings() -> dict[str, str]:
    """pip's own, lowest precedence first: files, then the environment."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = {}
    for line in sorted(listed.stdout.split("\n"), key=lambda line: line.startswith(":env:")):
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        words = [word for word in shlex.split(value)[:1] if name in _PIP_SETTINGS]
        kept = [part for word in words for part in word.split() if not part.startswith("file:")]
        if kept:
            found[name] = " ".join(kept)
    return found


def _certificates() -> Path:
    paths = ssl.get_default_verify_paths()
    debian = Path("/etc/ssl/certs/ca-certificates.crt")
    return debian if debian.exists() else Path(paths.cafile or paths.openssl_cafile)
