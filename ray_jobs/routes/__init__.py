"""HTTP routes of the gateway beside generation: one router a file."""
