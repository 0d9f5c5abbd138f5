"""Options, the order of tests, and what the report says of the libraries in use."""

import importlib.metadata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

LIBRARIES = ("aiohttp", "nvidia-ml-py", "prometheus-client", "systemd-python")
SCENARIOS = Path(__file__).with_name("scenarios")

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
    """What waits comes first, longest first, so that the rest works in the meantime."""
    items.sort(key=lambda item: (-_timeout_seconds(item), not item.path.is_relative_to(SCENARIOS)))


def _timeout_seconds(item: pytest.Item) -> float:
    """Of its own; 0 if it has none."""
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0
