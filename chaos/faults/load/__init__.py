"""Faults of how much is asked for at one time."""
