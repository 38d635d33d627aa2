"""Traces: what became of a request, kept whole when it is sampled or when something went wrong."""
