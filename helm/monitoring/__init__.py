"""From the declarations of dashboards/ to what the chart gives to operator and Grafana."""
