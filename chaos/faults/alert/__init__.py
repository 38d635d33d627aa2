"""Faults of the way by which people are told."""
