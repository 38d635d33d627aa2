"""Faults of how clients send, read and give up their requests."""
