"""`make install-service` without an index: an interpreter that makes environments out of this checkout.

Everything else of the installer is real. The stand-in refuses what pip is asked for without hashes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "sglang-pipeline-exporter"
UNIT_PATH = f"usr/local/lib/systemd/system/{NAME}.service"
CONFIG_PATH = f"etc/{NAME}/exporter.yaml"

_PYTHON = """#!/bin/sh
export PYTHONPATH={source}:{packages} LD_LIBRARY_PATH={prefix}/lib:$LD_LIBRARY_PATH
export PYTHONDONTWRITEBYTECODE=1
case "$*" in
  *"print(sys.base_prefix)"*) echo ${{BASE_PREFIX:-/usr}} ;;
  "-m venv "*)
    mkdir -p "$3/bin" "$3/lib"
    cp "$0" "$3/bin/python"
    echo "command = python -m venv $3" >"$3/pyvenv.cfg" ;;
  "-m pip install "*" --no-deps "*/source)
    program=$(dirname "$0")/{name}
    echo "#!$(dirname "$0")/python" >"$program"
    echo "import sys; from exporter.__main__ import main; sys.exit(main())" >>"$program"
    chmod +x "$program" ;;
  "-m pip install "*" --require-hashes "*" requirements.txt") ;;
  "-m pip "*) echo "refused: $*" >&2; exit 1 ;;
  "-m compileall "*) ;;
  *) exec {real} "$@" ;;
esac
"""


def write_python(path: Path, *, prefix: str, packages: str, source: str) -> None:
    """Writes the stand-in; the three are where it will find Python, packages and this checkout."""
    real = f"{prefix}/bin/python{sysconfig.get_python_version()}"
    text = _PYTHON.format(name=NAME, real=real, prefix=prefix, packages=packages, source=source)
    path.write_text(text)
    path.chmod(0o755)


def here(path: Path) -> Path:
    """Writes a stand-in for use on this machine."""
    packages = sysconfig.get_path("purelib")
    write_python(path, prefix=sys.base_prefix, packages=packages, source=str(ROOT))
    return path


def make(target: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a target of the Makefile with variables, which must name a DESTDIR."""
    assert variables["DESTDIR"], "this machine is not to be changed"
    base_prefix = (
        {"BASE_PREFIX": variables.pop("BASE_PREFIX")} if "BASE_PREFIX" in variables else {}
    )
    given = [f"{name}={value}" for name, value in variables.items()]
    return subprocess.run(
        ["make", "--no-print-directory", "-C", str(ROOT), target, *given],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **base_prefix, "MAKEFLAGS": ""},
    )
