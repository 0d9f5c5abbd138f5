"""The Kubernetes manifests as files, and as `kubectl kustomize` renders them; no cluster is asked."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana.build_dashboards import FOLDER as DASHBOARDS

ROOT = Path(__file__).parents[1]
KUBERNETES = ROOT / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
EXAMPLE = KUBERNETES / "overlays" / "example"
COMPONENTS = {path.name: path for path in sorted((KUBERNETES / "components").iterdir())}

Object = dict[str, Any]

renders = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@functools.cache
def rendered(folder: Path) -> list[Object]:
    """The objects of a kustomization, as `kubectl apply -k` would send them."""
    done = subprocess.run(
        ["kubectl", "kustomize", folder],
        env={**os.environ, "KUBECONFIG": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, Loader=_LOADER))


def with_components(folder: Path, *names: str) -> list[Object]:
    """The base with components, rendered from a copy in which an overlay names them."""
    kubernetes = folder / KUBERNETES.relative_to(ROOT)
    shutil.copytree(KUBERNETES, kubernetes)
    shutil.copytree(DASHBOARDS, folder / DASHBOARDS.relative_to(ROOT))
    overlay = kubernetes / "overlays" / "tested"
    overlay.mkdir()
    kustomization = {
        "resources": ["../../base"],
        "components": [f"../../components/{name}" for name in names],
    }
    (overlay / "kustomization.yaml").write_text(json.dumps(kustomization))
    return rendered(overlay)


def only(objects: list[Object], kind: str) -> Object:
    (found,) = (one for one in objects if one["kind"] == kind)
    return found


def pod_of(objects: list[Object]) -> Object:
    template: Object = only(objects, "DaemonSet")["spec"]["template"]
    return template


FILES = [read(BASE / name) for name in read(BASE / "kustomization.yaml")["resources"][:-1]]
"""The objects of the base that are written out; its last resource are the dashboards."""
POD = pod_of(FILES)["spec"]
(CONTAINER,) = POD["containers"]
MOUNTS = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
VOLUMES = {volume["name"]: volume for volume in POD["volumes"]}
