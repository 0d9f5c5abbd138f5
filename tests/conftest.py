"""Options and what the report says of the libraries in use."""

import importlib.metadata

import pytest

LIBRARIES = ("aiohttp", "nvidia-ml-py", "prometheus-client", "systemd-python")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite expected files instead of comparing"
    )


def pytest_report_header() -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
