"""A soak: windows of random faults one after another, each judged, and what processes hold."""
