"""Properties of the stream of one answer."""
