"""Properties of how the service comes back."""
