"""What is in the image, and what it says of itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exporter import __version__
from exporter.setting_values import DEFAULT_PORT

_TOOLS = {"gcc", "cc", "g++", "ld", "as", "make", "pip", "pip3", "pkg-config", "strip"}
_BUILD_ONLY = {"pip", "setuptools", "wheel", "ensurepip", "tests"}
_PREFIX = "opt/sglang-pipeline-exporter"


def says_what_it_is(config: Mapping[str, Any]) -> None:
    """User, port, signal, state and the two words that the NVIDIA runtime reads."""
    user, _, group = config["User"].partition(":")
    assert user.isdigit(), "Kubernetes cannot see that a name is not root"
    assert "0" not in (user, group)
    assert config["ExposedPorts"].keys() == {f"{DEFAULT_PORT}/tcp"}
    assert config["StopSignal"] == "SIGTERM"
    environment = dict(entry.split("=", 1) for entry in config["Env"])
    assert environment["STATE_DIRECTORY"] in config["Volumes"]
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert config["Labels"]["org.opencontainers.image.revision"]


def holds_nothing_more(root: Path) -> None:
    """No compiler, no pip, nothing that the build was handed, nothing others may change."""
    bins = [root / name for name in ("usr/bin", "usr/sbin", "usr/local/bin", f"{_PREFIX}/bin")]
    tools = {path.name for folder in bins for path in folder.iterdir()} & _TOOLS
    assert not tools, f"these are not needed to run it: {tools}"
    (packages,) = (root / _PREFIX / "lib").glob("python3*/site-packages")
    assert not {path.name for path in packages.iterdir()} & _BUILD_ONLY
    assert any(packages.glob("exporter/page/static/index.html"))
    assert not list((root / "run/secrets").glob("*")), "a secret of the build is in the image"
    assert not list((root / "var/lib/apt/lists").iterdir())
    changeable = [
        str(path)
        for path in _files(root / _PREFIX)
        if path.lstat().st_uid != 0 or (path.lstat().st_mode & 0o022 and not path.is_symlink())
    ]
    assert not changeable, changeable
    state = (root / "var/lib/sglang-pipeline-exporter").stat()
    assert (state.st_uid, state.st_gid, state.st_mode & 0o777) == (65532, 65532, 0o755)


def largest(root: Path) -> str:
    """The heaviest folders, heaviest first, in words."""
    folders = {
        name: sum(path.lstat().st_size for path in _files(root / name))
        for name in (_PREFIX, "usr/lib/python3.11", "usr/lib/x86_64-linux-gnu", "usr/bin", "var")
    }
    heaviest = sorted(folders.items(), key=lambda item: -item[1])
    return ", ".join(f"/{name} {size / 1e6:.1f} MB" for name, size in heaviest if size)


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)
