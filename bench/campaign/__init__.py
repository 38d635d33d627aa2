"""The coverage campaign: which faults that change an answer are seen, by whom, and in time."""
