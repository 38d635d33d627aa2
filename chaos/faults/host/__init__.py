"""Faults of the machine."""
