"""The table of faults, in the order in which it is printed."""

from __future__ import annotations

from tests.faults import Fault, clock, gpus, journal, state
from tests.journal_writer import journal_remote
from tests.journald import why_not

_NO_WRITER = None if journal_remote() else "systemd-journal-remote is not installed"

FAULTS = (
    Fault("clock set back and forward by an hour", "times", clock.stepped, 1, 10, _NO_WRITER),
    Fault("journal rotated", "rotations", journal.rotated, 3, 200, _NO_WRITER),
    Fault(
        "journal vacuumed of what was read",
        "vacuums",
        journal.vacuumed_of_what_was_read,
        2,
        100,
        _NO_WRITER,
    ),
    Fault(
        "journal vacuumed of what was not",
        "vacuums",
        journal.vacuumed_of_what_was_not,
        1,
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
    Fault("a burst", "lines", journal.burst, 4_000, 100_000, _NO_WRITER),
    Fault("a line of 1 MB", "lines", journal.huge_lines, 2, 100, _NO_WRITER),
    Fault("binary garbage", "entries", journal.garbage, 100, 20_000, _NO_WRITER),
    Fault("journald restarted", "restarts", journal.journald_restarted, 1, 20, why_not()),
    Fault(
        "SGLang restarted with other ranks", "restarts", journal.server_restarted, 3, 20, _NO_WRITER
    ),
    Fault(
        "exporter killed with -9 under load, journal rotated, vacuumed, damaged",
        "kills",
        journal.damaged_and_killed,
        0,
        100,
        _NO_WRITER,
    ),
    Fault(
        "disk full for the state file",
        "times",
        state.disk_full,
        1,
        20,
        _NO_WRITER or state.why_not(),
    ),
    Fault(
        "each NVML error of each call on one of eight GPUs", "errors", gpus.each_error, 15, 10_000
    ),
    Fault("a GPU falls off the bus and is back", "times", gpus.fewer_gpus, 1, 10),
    Fault("driver reloaded", "reloads", gpus.reloaded, 1, 10),
    Fault("driver replaced by another version", "replacements", gpus.updated, 0, 5),
    Fault("a driver call hangs for 10 s", "hangs", gpus.hung, 0, 3),
)
