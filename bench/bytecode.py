"""The exporter's modules compiled, as pip leaves an installed package: a checkout may have none.

Compiling them anew with each start would take a third of its processor time.
"""

from __future__ import annotations

import compileall
from pathlib import Path

_PACKAGE = Path(__file__).parents[1] / "exporter"


def write() -> None:
    """Writes what is missing or old, also where PYTHONDONTWRITEBYTECODE is set."""
    compileall.compile_dir(_PACKAGE, quiet=1)
