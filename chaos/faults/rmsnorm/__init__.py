"""Faults of RMSNorm."""
