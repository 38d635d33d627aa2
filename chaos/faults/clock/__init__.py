"""Faults of the wall clock."""
