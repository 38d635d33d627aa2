"""Chaos runs on somebody else's machines: submitted, followed, and their reports brought home."""
