"""Properties of the experiment itself."""
