"""All faults, one a file; the id of a fault is its path below this folder."""
