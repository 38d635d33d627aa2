"""Faults of the disk that serving processes write to."""
