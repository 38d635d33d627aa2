"""Faults on Ray's control plane."""
