"""Faults of how tokens are chosen."""
