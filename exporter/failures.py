"""What ends a command with a message; each names its remedy. Anything else is a bug."""

from __future__ import annotations

from exporter.comparison.run import ReportError
from exporter.config import ConfigError
from exporter.diagnose.live import NothingSeenError
from exporter.diagnose.remote_exporter import ExporterError
from exporter.load.failures import LoadError
from exporter.positions import StateFileInUseError
from exporter.recorder import CannotRecordError
from exporter.records import FatalSourceError
from exporter.standard_output import CannotPrintError
from exporter.web import CannotListenError

FAILURES = (
    ConfigError,
    CannotListenError,
    ExporterError,
    LoadError,
    NothingSeenError,
    ReportError,
    CannotRecordError,
    CannotPrintError,
    StateFileInUseError,
    FatalSourceError,
    OSError,
)
"""Recordings that cannot be read and files that cannot be written are among them, by their bases."""
