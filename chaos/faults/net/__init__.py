"""Faults on the road between the load and the service."""
