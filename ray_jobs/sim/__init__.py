"""The served model in one process on a virtual clock: no Ray, no threads, the same each time."""

SIM = "sim"
"""Value of the fact `mode` of a simulated run."""
