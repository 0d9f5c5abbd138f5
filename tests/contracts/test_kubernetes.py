"""The manifests against published schemas, against what they name, and against the exporter.

Nothing here speaks to a cluster: `kubectl kustomize` only renders files. Where it is missing, the
files are judged as they are, which holds all but the components and the dashboards.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from exporter import __version__
from exporter.config import load
from exporter.setting_values import DEFAULT_PORT
from tests.contracts import monitoring_v1
from tests.manifests import (
    BASE,
    COMPONENTS,
    CONTAINER,
    DASHBOARDS,
    EXAMPLE,
    FILES,
    KUBERNETES,
    MOUNTS,
    POD,
    ROOT,
    VOLUMES,
    Object,
    only,
    pod_of,
    read,
    rendered,
    renders,
    with_components,
)

PROMETHEUS = ROOT / "deploy" / "prometheus"
DOCKERFILE = ROOT / "Dockerfile"

OLDEST = "1.25"
NEWEST = kubernetes_validate.latest_version()
APPLIED_BYTES = 256 * 1024
"""`kubectl apply` keeps a copy of an object in an annotation of at most so much."""
NAME = "sglang-pipeline-exporter"


def complaints(one: Object) -> Iterator[str]:
    """What published schemas say against an object; unknown fields are mistakes, too."""
    where = f"{one['kind']} {one['metadata']['name']}"
    schema = monitoring_v1.SCHEMAS.get(one["kind"])
    for version in (OLDEST, NEWEST):
        try:
            if schema is None:
                kubernetes_validate.validate(one, version, strict=True)
            else:
                jsonschema.validate(one, schema)
        except jsonschema.ValidationError as error:
            yield f"{where} in {version}: {error.json_path}: {error.message}"


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("manifests", KUBERNETES / "build_manifests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- published schemas -------------------------------------------------------------------------


@pytest.mark.parametrize("one", FILES, ids=lambda one: one["kind"])
def test_published_schemas_accept_the_files(one: Object) -> None:
    assert list(complaints(one)) == []


@renders
def test_published_schemas_accept_what_is_applied() -> None:
    objects = rendered(EXAMPLE)
    assert [mistake for one in objects for mistake in complaints(one)] == []
    assert {one["metadata"].get("namespace", NAME) for one in objects} == {NAME}
    assert max(len(json.dumps(one)) for one in objects) < APPLIED_BYTES


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("DaemonSet", {"spec": {"template": {"spec": {"hostPid": True}}}}),
        ("DaemonSet", {"spec": {"template": {"spec": {"volumes": [{"hostPath": {}}]}}}}),
        ("Namespace", {"metadata": {"labels": ["privileged"]}}),
        ("PodMonitor", {"spec": {"podMetricsEndpoint": []}}),
        ("PrometheusRule", {"spec": {"groups": [{"name": "a", "rules": [{"alarm": "b"}]}]}}),
    ],
)
def test_a_mistake_is_found(kind: str, change: Object) -> None:
    def merged(old: Any, new: Any) -> Any:
        if not isinstance(old, dict) or not isinstance(new, dict):
            return new
        return {**old, **{key: merged(old.get(key), value) for key, value in new.items()}}

    assert list(complaints(merged(only(FILES, kind), change)))


# --- generated and named files -----------------------------------------------------------------


def test_the_rules_of_the_operator_are_those_of_the_files() -> None:
    built = program().built()
    assert (BASE / "prometheusrule.yaml").read_text() == built, "run make manifests"
    files = [PROMETHEUS / f"{name}.rules.yaml" for name in ("recording", "alerting")]
    assert sorted(files) == sorted(PROMETHEUS.glob("*.rules.yaml"))
    groups = [group for path in files for group in read(path)["groups"]]
    assert yaml.safe_load(built)["spec"] == {"groups": groups}


def test_every_dashboard_has_a_config_map_that_the_sidecar_finds() -> None:
    made = read(DASHBOARDS / "kustomization.yaml")
    assert {one["name"]: one["files"] for one in made["configMapGenerator"]} == {
        f"{path.stem}-dashboard": [path.name] for path in DASHBOARDS.glob("*.json")
    }
    assert made["generatorOptions"]["labels"] == {"grafana_dashboard": "1"}


@renders
def test_a_dashboard_arrives_as_it_was_built() -> None:
    maps = [
        one for one in rendered(BASE) if "grafana_dashboard" in one["metadata"].get("labels", ())
    ]
    assert {name: text for one in maps for name, text in one["data"].items()} == {
        path.name: path.read_text() for path in DASHBOARDS.glob("*.json")
    }


# --- the exporter ------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", [BASE, EXAMPLE], ids=["base", "example"])
def test_the_configuration_is_one_the_exporter_takes(folder: Path) -> None:
    config = load(folder / "exporter.yaml")
    assert config.state_file is not None
    assert str(config.state_file.parent) == MOUNTS["state"]["mountPath"]
    assert config.listen_port == DEFAULT_PORT == CONTAINER["ports"][0]["containerPort"]
    for pattern in (pattern for server in config.servers for pattern in server.files):
        # The namespace is named, so that no other can write a server's lines.
        assert re.fullmatch(r"/var/log/pods/[a-z0-9-]+_[^/]+/[^/]+/\*\.log", pattern)
        assert pattern.startswith(MOUNTS["logs"]["mountPath"])


def test_the_container_reads_the_file_that_is_mounted() -> None:
    assert CONTAINER["args"] == [
        "serve",
        "--config",
        f"{MOUNTS['config']['mountPath']}/exporter.yaml",
    ]
    (made,) = read(BASE / "kustomization.yaml")["configMapGenerator"]
    assert made == {"name": VOLUMES["config"]["configMap"]["name"], "files": ["exporter.yaml"]}
    assert "subPath" not in MOUNTS["config"]


@renders
def test_another_configuration_is_another_config_map_and_so_restarts_the_pods() -> None:
    names = []
    for folder in (BASE, EXAMPLE):
        volumes = {volume["name"]: volume for volume in pod_of(rendered(folder))["spec"]["volumes"]}
        names.append(volumes["config"]["configMap"]["name"])
    assert names[0] != names[1]
    assert all(re.fullmatch(rf"{NAME}-[a-z0-9]+", name) for name in names)


@pytest.mark.parametrize("folder", [BASE, EXAMPLE], ids=["base", "example"])
def test_the_image_is_that_of_this_version(folder: Path) -> None:
    (image,) = read(folder / "kustomization.yaml")["images"]
    assert image["name"] == CONTAINER["image"]
    assert str(image["newTag"]) == __version__


@pytest.mark.skipif(not DOCKERFILE.exists(), reason="there is no Dockerfile yet")
def test_the_image_has_the_port_the_user_and_the_command_that_the_manifests_rely_on() -> None:
    recipe = DOCKERFILE.read_text()
    user = read(COMPONENTS["non-root"] / "kustomization.yaml")["patches"][0]["patch"]
    security = yaml.safe_load(user)["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}\n" in recipe
    assert f"EXPOSE {DEFAULT_PORT}\n" in recipe
    assert f'ENTRYPOINT ["{NAME}"]\n' in recipe


# --- scraping ----------------------------------------------------------------------------------


def test_the_operator_scrapes_as_the_example_does_and_under_the_name_that_an_alert_knows() -> None:
    (endpoint,) = only(FILES, "PodMonitor")["spec"]["podMetricsEndpoints"]
    (job,) = read(PROMETHEUS / "prometheus.yaml")["scrape_configs"]
    assert endpoint["interval"] == job["scrape_interval"]
    assert endpoint["port"] == CONTAINER["ports"][0]["name"]
    given = {one["targetLabel"]: one for one in endpoint["relabelings"]}
    assert given["job"]["replacement"] == job["job_name"]
    assert given["instance"]["sourceLabels"] == ["__meta_kubernetes_pod_node_name"]


def test_the_monitor_selects_the_pods_of_the_daemon_set() -> None:
    labels = pod_of(FILES)["metadata"]["labels"]
    for kind in ("DaemonSet", "PodMonitor"):
        assert only(FILES, kind)["spec"]["selector"]["matchLabels"] == labels


def test_the_job_without_the_operator_finds_the_same_pods_under_the_same_labels(
    tmp_path: Path,
) -> None:
    (job,) = read(COMPONENTS["without-prometheus-operator"] / "prometheus.yaml")["scrape_configs"]
    (endpoint,) = only(FILES, "PodMonitor")["spec"]["podMetricsEndpoints"]
    given = {one["targetLabel"]: one for one in endpoint["relabelings"]}
    keep, instance = job["relabel_configs"]
    assert job["job_name"] == given["job"]["replacement"]
    assert job["scrape_interval"] == endpoint["interval"]
    assert keep["regex"] == f"{NAME};{CONTAINER['ports'][0]['name']}"
    assert instance["target_label"] == "instance"
    assert instance["source_labels"] == given["instance"]["sourceLabels"]
    # Debian's promtool is built without this discovery: it judges the rest.
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]
    config = tmp_path / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"scrape_configs": [job]}))
    checked = subprocess.run(
        ["promtool", "check", "config", config], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


# --- privileges --------------------------------------------------------------------------------


def test_the_container_has_no_capability_cannot_gain_any_and_writes_to_its_state_only() -> None:
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert [name for name, mount in MOUNTS.items() if not mount.get("readOnly")] == ["state"]
    assert not POD["automountServiceAccountToken"]
    assert not {"hostNetwork", "hostIPC", "priorityClassName"} & POD.keys()


def test_no_gpu_is_reserved_and_all_are_seen() -> None:
    assert not any("gpu" in name for kind in CONTAINER["resources"].values() for name in kind)
    assert {one["name"]: one["value"] for one in CONTAINER["env"]}[
        "NVIDIA_VISIBLE_DEVICES"
    ] == "all"
    assert POD["runtimeClassName"] == "nvidia"


@renders
@pytest.mark.parametrize("name", COMPONENTS)
def test_a_component_gives_objects_that_published_schemas_accept(name: str, tmp_path: Path) -> None:
    objects = with_components(tmp_path, name)
    assert [mistake for one in objects for mistake in complaints(one)] == []


@renders
def test_all_components_together_leave_no_root_no_host_process_and_no_custom_resource(
    tmp_path: Path,
) -> None:
    objects = with_components(tmp_path, *COMPONENTS)
    pod = pod_of(objects)["spec"]
    assert "hostPID" not in pod
    assert pod["securityContext"]["runAsNonRoot"]
    assert 0 not in (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"])
    paths = {one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    assert paths == {"/var/log/pods", "/var/lib/docker/containers"}
    writable = [
        one["name"] for one in pod["containers"][0]["volumeMounts"] if not one.get("readOnly")
    ]
    assert writable == ["state"]
    assert {one["kind"] for one in objects} == {"Namespace", "ConfigMap", "DaemonSet"}
    annotations = pod_of(objects)["metadata"]["annotations"]
    assert annotations == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(DEFAULT_PORT),
    }
