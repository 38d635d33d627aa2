"""Faults on a node of the cluster."""
