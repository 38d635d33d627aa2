"""Properties of the service as a whole."""
