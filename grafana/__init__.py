"""Grafana dashboards as code: from the metric catalog to the JSON that Grafana loads."""
