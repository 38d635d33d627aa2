"""Properties of the health pages."""
