"""Faults of the attention launch."""
