"""Grafana: dashboards as JSON, provisioning by file, and the few HTTP calls that we make."""
