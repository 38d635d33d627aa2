"""Faults of the checker itself."""
