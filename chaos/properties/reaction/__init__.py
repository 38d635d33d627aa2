"""Properties of what the service does about a fault."""
