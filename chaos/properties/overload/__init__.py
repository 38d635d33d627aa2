"""Properties of a service that is asked for more than it can do."""
