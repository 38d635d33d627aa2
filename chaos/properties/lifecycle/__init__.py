"""Properties of the life of a request."""
