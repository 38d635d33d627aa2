"""Crash paths: what dies or raises in the middle of a fault, and whether the fault stays armed."""
