"""Faults on the pod of a replica."""
