"""Properties of what was answered, against the golden decode."""
