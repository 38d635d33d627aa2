"""Chaos Mesh: the faults of an experiment that a cluster can inject by itself, as its resources."""
