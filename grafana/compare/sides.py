"""The two sides: which series are A's and which are B's."""

from __future__ import annotations

from typing import Final

from exporter import metric_catalog as catalog
from grafana import palette
from grafana.figures import Query
from grafana.queries import Scope, of_stage

A: Final = Scope({"server": 'server="$server_a"'})
B: Final = Scope({"server": 'server="$server_b"'}, offset=" offset $offset_b")
COLORS: Final = {"^A": palette.BEST, "^B": palette.POOR}
"""Regular expression over a side's name → its color."""
HOW: Final = "A is server_a; B is server_b, offset_b earlier."
"""Said on every panel."""


def both(expression_a: str, expression_b: str) -> list[Query]:
    """The same figure of both sides."""
    return [Query(expression_a, "A"), Query(expression_b, "B")]


def watts(scope: Scope) -> str:
    """Power of each GPU on which a rank of the side runs."""
    return of_stage(scope.now(catalog.GPU_POWER_WATTS), scope)
