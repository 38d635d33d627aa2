"""Properties of degraded service."""
