"""Properties of what processes hold."""
