"""Compose and provisioning files against the image, files, ports and folders that they name.

Docker does not run here: what can be held without it is held. tests/image builds and runs the image.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from exporter.setting_values import DEFAULT_PORT, DEFAULT_UNIT
from exporter.simulator.scenarios import SCENARIOS
from exporter.sources.journal.reader import SYSTEM_ROOTS
from grafana.build_dashboards import FOLDER
from grafana.occupancy import UID

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose" / "compose.yaml"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
NAME = "sglang-pipeline-exporter"
PROVISIONING = ROOT / "grafana" / "provisioning"
PROMETHEUS = ROOT / "deploy" / "prometheus" / "prometheus.yaml"
PROMETHEUS_PORT, GRAFANA_PORT = 9090, 3000


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


SERVICES = read(COMPOSE)["services"]
HOST = read(COMPOSE.with_name("host.yaml"))
IMAGE_ENV = dict(re.findall(r"^(?:ENV)? +(\w+)=(\S+)", DOCKERFILE, re.MULTILINE))


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


def test_both_build_the_image_of_this_repository() -> None:
    for service in (SERVICES["exporter"], HOST["services"]["exporter"]):
        assert (COMPOSE.parent / service["build"]).resolve() == ROOT
        assert service["image"] == NAME


def test_beside_a_server_it_has_no_privileges_and_what_it_needs() -> None:
    service = HOST["services"]["exporter"]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert service["pid"] == "host"
    (group,) = service["group_add"]
    assert group.startswith("${JOURNAL_GROUP:?")
    (gpus,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (gpus["driver"], gpus["count"]) == ("nvidia", "all")
    assert set(IMAGE_ENV["NVIDIA_DRIVER_CAPABILITIES"].split(",")) < set(gpus["capabilities"])


def test_beside_a_server_it_reads_the_journal_and_writes_its_state_alone() -> None:
    changeable, read = set(), set()
    for volume in HOST["services"]["exporter"]["volumes"]:
        if isinstance(volume, str):
            source, target, *mode = volume.split(":")
        else:
            source, target, mode = volume["source"], volume["target"], ["ro"]
            assert volume["read_only"]
            # A host where Docker makes this folder begins to keep its journal there.
            assert not volume["bind"]["create_host_path"]
        (read if mode == ["ro"] else changeable).add(target)
        assert source == target or source in HOST["volumes"]
    assert read == {"/var/log/journal", "/run/log", "/etc/machine-id"}
    assert changeable == {IMAGE_ENV["STATE_DIRECTORY"]}
    assert all(any(root.is_relative_to(path) for path in read) for root in SYSTEM_ROOTS)


def test_beside_a_server_it_listens_where_the_host_is_asked_and_follows_the_default_unit() -> None:
    service = HOST["services"]["exporter"]
    assert service["ports"] == [f"{DEFAULT_PORT}:{DEFAULT_PORT}"]
    command = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in service["command"]]
    assert command == ["serve", "--unit", DEFAULT_UNIT]


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
