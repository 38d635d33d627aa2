"""Properties of what was executed."""
