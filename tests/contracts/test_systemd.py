"""The unit and its installer against the program, the documentation and systemd's own judgment."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from exporter import service_manager
from exporter.cli import _parser
from exporter.config import load
from exporter.setting_values import DEFAULT_PORT
from exporter.settings import SETTINGS
from tests.service_installer import CONFIG_PATH, NAME, ROOT, UNIT_PATH, here, make

UNIT = ROOT / "deploy" / "systemd" / f"{NAME}.service"
PAGE = (ROOT / "docs" / "systemd.md").read_text()
MOST_EXPOSURE = 2.0
TARGETS = ("sysinit", "basic", "shutdown", "network", "multi-user")

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="Debian's package systemd is not installed"
)


def settings(text: str) -> dict[str, list[str]]:
    """Every `Name=value` of a unit, by name."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


SAID = settings(UNIT.read_text())


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    """What `make install-service DESTDIR=…` installed."""
    root = tmp_path / "root"
    done = make("install-service", DESTDIR=str(root), PYTHON=str(here(tmp_path / "python")))
    assert done.returncode == 0, done.stderr
    return root


def test_the_unit_starts_a_command_that_exists_with_the_configuration_that_is_installed() -> None:
    (command,) = SAID["ExecStart"]
    program, *arguments = shlex.split(command)
    assert program == f"/opt/{NAME}/bin/{NAME}"
    assert _parser().parse_args(arguments).config == Path("/") / CONFIG_PATH
    assert SAID["ConfigurationDirectory"] == [str(Path(CONFIG_PATH).parent.name)]


def test_reading_positions_lie_where_the_settings_say() -> None:
    (state,) = (setting for setting in SETTINGS if setting.key == "state_file")
    assert state.example == f"/var/lib/{SAID['StateDirectory'][0]}/positions.json"


def test_the_unit_waits_longer_than_the_program_takes() -> None:
    assert int(SAID["WatchdogSec"][0].removesuffix("s")) > 2 * service_manager.LOOK_SECONDS
    assert int(SAID["TimeoutStartSec"][0].removesuffix("s")) > service_manager.READY_SECONDS


def test_no_device_is_allowed_by_a_path_which_systemd_would_not_glob() -> None:
    assert all(value.startswith("char-") for value in SAID["DeviceAllow"])


def test_the_page_and_the_installer_name_the_port() -> None:
    for text in (PAGE, (ROOT / "deploy" / "setup" / "install-service").read_text()):
        ports = re.findall(r"localhost:(\d+)", text)
        assert ports
        assert set(ports) == {str(DEFAULT_PORT)}


# --- what systemd says of it ---------------------------------------------------------------------


@needs_systemd_analyze
def test_systemd_finds_nothing_wrong_with_what_is_installed(root: Path) -> None:
    units = root / "lib" / "systemd" / "system"
    units.mkdir(parents=True)
    for target in TARGETS:  # what every systemd brings along
        (units / f"{target}.target").write_text("[Unit]\nDefaultDependencies=no\n")
    (root / "bin").mkdir()
    shutil.copy("/bin/kill", root / "bin")
    command = ["systemd-analyze", "verify", "--man=no", f"--root={root}", "/" + UNIT_PATH]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_systemd_analyze
def test_its_exposure_is_small_and_each_remaining_point_is_explained(root: Path) -> None:
    base = ["systemd-analyze", "security", "--offline=true", "--no-pager"]
    command = [*base, f"--threshold={MOST_EXPOSURE * 10:.0f}", str(root / UNIT_PATH)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    shown = re.search(r"Overall exposure level for .*: (\S+)", done.stdout)
    assert shown is not None
    assert float(shown[1]) <= MOST_EXPOSURE
    assert f"Exposure {shown[1]}" in PAGE
    told = subprocess.run(
        [*base, "--json=short", str(root / UNIT_PATH)], capture_output=True, text=True, check=True
    )
    remaining = {item["name"] for item in json.loads(told.stdout) if item["exposure"]}
    explained = re.findall(r"^\| `([^`]+)` \| \d\.\d \|", PAGE, re.MULTILINE)
    assert remaining == {name.replace("\\|", "|") for name in explained}


# --- the installer -------------------------------------------------------------------------------


def test_what_is_installed_knows_its_place_and_not_where_it_was_made(root: Path) -> None:
    program = root / "opt" / NAME / "bin" / NAME
    assert program.read_text().startswith(f"#!/opt/{NAME}/bin/python\n")
    assert not (root / "opt" / f"{NAME}.new").exists()
    for path in (path for path in root.rglob("*") if path.is_file()):
        assert str(root) not in path.read_text(), path
    assert (root / UNIT_PATH).read_text() == UNIT.read_text()
    assert (root / CONFIG_PATH).read_text() == (ROOT / "deploy" / "exporter.yaml").read_text()
    (page,) = re.findall(r"file://(\S+)", SAID["Documentation"][0])
    assert (root / page.lstrip("/")).exists()
    assert load(root / CONFIG_PATH).listen_port == DEFAULT_PORT


def test_another_prefix_is_told_to_the_unit(tmp_path: Path) -> None:
    root, python = tmp_path / "root", str(here(tmp_path / "python"))
    made = make("install-service", DESTDIR=str(root), PYTHON=python, PREFIX="/srv/exporter")
    assert made.returncode == 0, made.stderr
    unit = (root / UNIT_PATH).read_text()
    assert "/opt/" not in unit
    assert f"ExecStart=/srv/exporter/bin/{NAME} serve" in unit
    assert (root / "srv" / "exporter" / "bin" / NAME).exists()


def test_a_second_run_renews_everything_but_the_configuration(root: Path, tmp_path: Path) -> None:
    (root / CONFIG_PATH).write_text("listen: 127.0.0.1:10810\n")
    (root / UNIT_PATH).write_text("old")
    old = root / "opt" / NAME / "lib" / "old"
    old.write_text("of the version before")
    made = make("install-service", DESTDIR=str(root), PYTHON=str(tmp_path / "python"))
    assert made.returncode == 0, made.stderr
    assert (root / CONFIG_PATH).read_text() == "listen: 127.0.0.1:10810\n"
    assert (root / UNIT_PATH).read_text() == UNIT.read_text()
    assert not old.exists()


def test_a_configuration_with_mistakes_is_named_before_anything_is_changed(
    root: Path, tmp_path: Path
) -> None:
    (root / CONFIG_PATH).write_text("listne: :1\n")
    old = root / "opt" / NAME / "lib" / "old"
    old.write_text("of the version before")
    made = make("install-service", DESTDIR=str(root), PYTHON=str(tmp_path / "python"))
    assert made.returncode != 0
    assert "did you mean listen?" in made.stderr
    assert "nothing was changed" in made.stderr
    assert old.exists()
    assert not (root / "opt" / f"{NAME}.new").exists()


def test_the_undo_takes_away_what_was_installed_and_keeps_what_is_yours(root: Path) -> None:
    state = root / "var" / "lib" / "private" / NAME / "positions.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    undone = make("uninstall-service", DESTDIR=str(root))
    assert undone.returncode == 0, undone.stderr
    left = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert left == {CONFIG_PATH, str(state.relative_to(root))}
    assert "are kept" in undone.stdout
    assert make("uninstall-service", DESTDIR=str(root)).returncode == 0
    assert make("uninstall-service", DESTDIR=str(root), PURGE="1").returncode == 0
    assert not [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PREFIX": "/home/me/exporter"}, "cannot see /home/me/exporter"),
        ({"PREFIX": "/tmp/exporter"}, "cannot see /tmp/exporter"),  # noqa: S108  # it is refused
        ({"PREFIX": "exporter"}, "absolute"),
        ({"PREFIX": "/opt"}, "folder of its own"),
        ({"PREFIX": "/opt/../usr"}, "plain path"),
        ({"PREFIX": "/usr/lib"}, "something else"),
        ({"BASE_PREFIX": "/root/.pyenv/versions/3.12.1"}, "lives in /root/.pyenv"),
        ({"PYTHON": "python-that-is-not-there"}, "cannot find python-that-is-not-there"),
    ],
    ids=["home", "tmp", "relative", "shared", "dots", "taken", "python at home", "no python"],
)
def test_what_could_not_work_is_refused_before_anything_is_made(
    tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    root = tmp_path / "root"
    (root / "usr" / "lib").mkdir(parents=True)
    given = {"DESTDIR": str(root), "PYTHON": str(here(tmp_path / "python")), **variables}
    made = make("install-service", **given)
    assert made.returncode != 0
    assert said in made.stderr
    assert not [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.soak
def test_the_real_interpreter_and_index_give_a_program_that_runs(tmp_path: Path) -> None:
    root = tmp_path / "root"
    made = make("install-service", DESTDIR=str(root))
    assert made.returncode == 0, made.stderr
    python = root / "opt" / NAME / "bin" / "python"
    ran = subprocess.run([python, "-m", "exporter", "--version"], cwd=root, check=True)
    assert ran.returncode == 0
