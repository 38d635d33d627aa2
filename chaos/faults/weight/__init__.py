"""Faults of the model's weights."""
