"""Faults of the paged KV memory."""
