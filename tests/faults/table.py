"""The table of faults, in the order in which it is printed."""

from __future__ import annotations

from tests.faults import Fault, clock, journal
from tests.journal_writer import journal_remote
from tests.journald import why_not

_NO_WRITER = None if journal_remote() else "systemd-journal-remote is not installed"

FAULTS = (
    Fault("clock set back and forward by an hour", "times", clock.stepped, 1, 10, _NO_WRITER),
    Fault("journal rotated", "rotations", journal.rotated, 5, 200, _NO_WRITER),
    Fault(
        "journal vacuumed of what was read",
        "vacuums",
        journal.vacuumed_of_what_was_read,
        3,
        100,
        _NO_WRITER,
    ),
    Fault(
        "journal vacuumed of what was not",
        "vacuums",
        journal.vacuumed_of_what_was_not,
        2,
        20,
        _NO_WRITER,
    ),
    Fault(
        "permissions taken away and given back",
        "times",
        journal.permissions_taken,
        3,
        30,
        _NO_WRITER,
    ),
    Fault("a burst", "lines", journal.burst, 10_000, 100_000, _NO_WRITER),
    Fault("a line of 1 MB", "lines", journal.huge_lines, 4, 100, _NO_WRITER),
    Fault("binary garbage", "entries", journal.garbage, 200, 20_000, _NO_WRITER),
    Fault("journald restarted", "restarts", journal.journald_restarted, 2, 20, why_not()),
    Fault(
        "SGLang restarted with other ranks", "restarts", journal.server_restarted, 4, 20, _NO_WRITER
    ),
    Fault(
        "exporter killed with -9 under load, journal rotated, vacuumed, damaged",
        "kills",
        journal.damaged_and_killed,
        1,
        100,
        _NO_WRITER,
    ),
)
