"""The Dockerfile against the repository; tests/image builds and runs it."""

from __future__ import annotations

import re
import ssl
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from exporter.setting_values import DEFAULT_PORT

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
HEALTHCHECK = ROOT / "deploy" / "container" / "healthcheck"


def copied() -> list[str]:
    """What the Dockerfile takes from the repository."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()[:-1]]


def test_the_image_is_built_from_files_that_are_there_and_that_the_build_may_see() -> None:
    refused, *allowed = [
        line
        for line in (ROOT / ".dockerignore").read_text().split("\n")
        if line and not line.startswith(("#", "**"))
    ]
    assert refused == "*"
    patterns = [line.removeprefix("!") for line in allowed]
    assert all((ROOT / name).exists() for name in copied())
    for name in copied():
        assert any(fnmatch(name, pattern) for pattern in patterns), name
    for pattern in patterns:
        assert any(fnmatch(name, pattern) for name in copied()), f"{pattern} is not needed"


def test_the_image_runs_the_command_of_the_project_on_its_port() -> None:
    (script,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert f'\nENTRYPOINT ["{script}"]\n' in DOCKERFILE
    assert f"\nEXPOSE {DEFAULT_PORT}\n" in DOCKERFILE
    assert f'"http://127.0.0.1:{DEFAULT_PORT}/-/healthy"' in HEALTHCHECK.read_text()


def test_the_build_backend_of_the_image_is_the_pinned_one() -> None:
    (pattern,) = re.findall(r"sed -n '/\^(.+?)/,/(?:.+?)/p' requirements-dev.txt", DOCKERFILE)
    pinned = (ROOT / "requirements-dev.txt").read_text()
    (entry,) = re.findall(rf"^{pattern}.*?# via", pinned, re.MULTILINE | re.DOTALL)
    assert entry.startswith("setuptools==")
    assert "--hash=sha256:" in entry
    assert entry.count("==") == 1


@pytest.mark.parametrize(("status", "exit_code"), [(200, 0), (401, 0), (404, 1), (503, 1)])
def test_the_healthcheck_takes_health_and_a_demand_for_a_password_for_life(
    status: int, exit_code: int
) -> None:
    with answering(status) as (address, asked):
        assert healthcheck(f"http://{address}/-/healthy") == exit_code
    assert asked == ["/-/healthy"]


def test_the_healthcheck_asks_over_tls_whoever_signed_the_certificate(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x"
    made = [*command.split(" "), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with answering(200, context) as (address, asked):
        assert healthcheck(f"https://{address}/-/healthy") == 0
    assert asked == ["/-/healthy"]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/-/healthy", "127.0.0.1", "http://127.0.0.1/-/healthy", ""]
)
def test_the_healthcheck_fails_where_nobody_answers(url: str) -> None:
    assert healthcheck(url) == 1


def healthcheck(url: str) -> int:
    env = {"HEALTHCHECK_URL": url}
    return subprocess.run([HEALTHCHECK], env=env, capture_output=True, check=False).returncode


@contextmanager
def answering(status: int, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[str]]]:
    """A server that gives every request this status; its address and the paths it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()
