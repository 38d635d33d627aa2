"""Chaos Toolkit: an experiment of ours as one of theirs, and the provider that runs it there."""
