"""Options, the order of tests, and what the report says of the libraries in use."""

import importlib.metadata

import pytest
from hypothesis import HealthCheck, settings

LIBRARIES = ("aiohttp", "nvidia-ml-py", "prometheus-client", "systemd-python")
SMALL = ("contracts", "unit")
"""Folders of tests that are over in a moment."""

# Tests run beside each other: how long an example takes says nothing about it.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite expected files instead of comparing"
    )


def pytest_report_header() -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may take longest comes first: while it waits, other workers run the rest."""
    items.sort(key=lambda item: (-_timeout_seconds(item), item.path.parent.name in SMALL))


def _timeout_seconds(item: pytest.Item) -> float:
    """Of its own; 0 if it has none."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0
