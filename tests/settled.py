"""Settled seconds for tests that need no activity behind them."""

from __future__ import annotations

from collections.abc import Mapping

from exporter.pipeline.clock import Second, StageSummary
from exporter.pipeline.grid import METHODS
from exporter.pipeline.stage_cells import StageCells
from exporter.records import Method


def stage(
    working: float, waiting: float | None = 0.0, method: Method = Method.POWER, seen: float = 1.0
) -> StageSummary:
    """A stage that does the same in each of the 50 cells of a second."""
    cells = StageCells(
        bytes([round(250 * seen)]) * 50,
        bytes([round(250 * working)]) * 50,
        bytes([round(250 * (waiting or 0.0))]) * 50,
        bytes([METHODS.index(method)]) * 50,
    )
    return StageSummary(seen, working, waiting, method, (working,), cells)


def settled(
    second: int, stages: Mapping[int, StageSummary], batches: Mapping[int, int] | None = None
) -> Second:
    """One second of a pipeline, in flight throughout."""
    return Second(second, stages, None, 0.02, batches or {}, None, 1.0)
