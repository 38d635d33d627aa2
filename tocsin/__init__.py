"""Tocsin makes silent faults in LLM inference loud, contained and repaired, and proves it."""
