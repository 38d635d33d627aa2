"""Faults of the logits."""
