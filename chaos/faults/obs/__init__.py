"""Faults of what tells people and machines how the service is."""
