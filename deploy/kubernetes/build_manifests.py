"""Writes the PrometheusRule from the files of rules, comments included.

python deploy/kubernetes/build_manifests.py

Kustomize reads no file outside its folder and cannot put a file's content into an object.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
RULES: Final = HERE.parent / "prometheus"
WRITTEN: Final = HERE / "base" / "prometheusrule.yaml"

HEAD: Final = """\
# Generated from deploy/prometheus/*.rules.yaml: make manifests
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: sglang-pipeline
  labels:
    app.kubernetes.io/name: sglang-pipeline-exporter
spec:
  groups:
"""
TOP: Final = "groups:\n"


def built() -> str:
    """The manifest, the same for the same rules.

    Raises:
        ValueError: A file of rules has something else at its top level.
    """
    text = HEAD
    for path in (RULES / "recording.rules.yaml", RULES / "alerting.rules.yaml"):
        preface, top, groups = path.read_text().partition(TOP)
        if not top or any(line and line[0] != "#" for line in preface.split("\n")):
            raise ValueError(f"{path.name} does not begin with comments and {TOP.strip()}")
        text += "".join(f"  {line}\n" if line else "\n" for line in groups.rstrip("\n").split("\n"))
    return text


if __name__ == "__main__":
    WRITTEN.write_text(built())
