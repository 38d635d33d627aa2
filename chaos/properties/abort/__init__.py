"""Properties of requests that their clients gave up."""
