"""The alerts, one a file; the name of the file is the id, and the name of the runbook."""
