"""Where the texts behind the dashboards are: placeholders, as in the alerting rules.

sed -i 's|https://docs.example|https://…|' grafana/dashboards/*.json
"""

from typing import Final

DOCS: Final = "https://docs.example"
RUNBOOKS: Final = f"{DOCS}/runbooks/"
SOURCE: Final = f"{DOCS}/DESIGN.md"
