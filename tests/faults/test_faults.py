"""Every fault of the table, a few times."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import Fault
from tests.faults.table import FAULTS


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.few], ids=str)
def test_a_fault_shows_what_it_has_to(fault: Fault, tmp_path: Path) -> None:
    if fault.why_not is not None:
        pytest.skip(fault.why_not)
    outcome = fault.provoke(tmp_path, fault.few)
    assert outcome.seen == outcome.expected
