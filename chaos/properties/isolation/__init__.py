"""Properties of what one request may see of another."""
