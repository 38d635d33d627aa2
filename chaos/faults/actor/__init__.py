"""Faults of the serving process."""
