"""Where the texts behind the dashboards are."""

from typing import Final

SOURCE: Final = "https://github.com/sglang-pipeline-exporter/sglang-pipeline-exporter"
RUNBOOKS: Final = SOURCE + "/blob/main/docs/runbooks/"
