"""Faults of what a prompt says."""
