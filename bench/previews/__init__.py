"""Pictures of the dashboards without a Grafana: its JSON, laid out and drawn from live data."""
