"""Faults of the rotary embedding."""
