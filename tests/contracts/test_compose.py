"""Compose and provisioning files against the files, ports and folders that they name.

Docker does not run here: what can be held without it is held.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml

from exporter.setting_values import DEFAULT_PORT
from exporter.simulator.scenarios import SCENARIOS
from grafana.build_dashboards import FOLDER
from grafana.occupancy import UID

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
PROVISIONING = ROOT / "grafana" / "provisioning"
PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yaml"
PROMETHEUS_PORT, GRAFANA_PORT = 9090, 3000


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


SERVICES = read(COMPOSE)["services"]


def mounts(service: str) -> dict[str, Path]:
    """Path in the container → file or folder of the repository."""
    found = {}
    for volume in SERVICES[service]["volumes"]:
        source, target, mode = volume.split(":")
        assert mode == "ro"
        found[target] = (COMPOSE.parent / source).resolve()
    return found


def test_everything_that_is_mounted_exists() -> None:
    for service in ("prometheus", "grafana"):
        assert all(path.exists() for path in mounts(service).values())


def test_all_services_are_on_one_localhost_and_their_ports_are_open_to_this_machine_only() -> None:
    assert SERVICES["prometheus"]["network_mode"] == "service:exporter"
    assert SERVICES["grafana"]["network_mode"] == "service:exporter"
    assert SERVICES["exporter"]["ports"] == [
        f"127.0.0.1:{port}:{port}" for port in (DEFAULT_PORT, PROMETHEUS_PORT, GRAFANA_PORT)
    ]


def test_the_demo_listens_where_prometheus_scrapes() -> None:
    command = SERVICES["exporter"]["command"]
    assert command[:2] == ["demo", "--scenario"]
    assert command[2].removeprefix("${SCENARIO:-").removesuffix("}") in SCENARIOS
    assert command[3:] == ["--listen", f":{DEFAULT_PORT}"]
    (job,) = read(PROMETHEUS)["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"localhost:{DEFAULT_PORT}"]}]


def test_prometheus_is_started_with_the_configuration_that_is_mounted() -> None:
    (option,) = (one for one in SERVICES["prometheus"]["command"] if "config.file" in one)
    folder, _, name = option.partition("=")[2].rpartition("/")
    assert mounts("prometheus")[folder] / name == PROMETHEUS


def test_the_image_is_built_from_files_that_are_there() -> None:
    build = SERVICES["exporter"]["build"]
    context = (COMPOSE.parent / build["context"]).resolve()
    assert context == ROOT
    recipe = build["dockerfile_inline"]
    copied = [line.split()[1:-1] for line in recipe.split("\n") if line.startswith("COPY")]
    assert copied
    assert all((context / name).exists() for names in copied for name in names)
    script = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert all(name in recipe for name in script)


def test_grafana_asks_the_prometheus_beside_it_and_knows_its_scrape_interval() -> None:
    (source,) = read(PROVISIONING / "datasources" / "prometheus.yaml")["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == f"http://localhost:{PROMETHEUS_PORT}"
    (job,) = read(PROMETHEUS)["scrape_configs"]
    assert source["jsonData"]["timeInterval"] == job["scrape_interval"]


def test_grafana_finds_the_dashboards_where_they_are_mounted() -> None:
    (provider,) = read(PROVISIONING / "dashboards" / "sglang-pipeline.yaml")["providers"]
    mounted = mounts("grafana")
    assert mounted[provider["options"]["path"]] == FOLDER
    assert mounted["/etc/grafana/provisioning"] == PROVISIONING
    assert not provider["allowUiUpdates"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/{UID}.json"
    assert (FOLDER / f"{UID}.json").exists()
