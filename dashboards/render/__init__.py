"""From declarations to the files that Prometheus and Alertmanager read."""
