"""Faults of what is put into a batch."""
