"""Properties of what people are told."""
