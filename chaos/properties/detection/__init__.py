"""Properties of the alarms."""
