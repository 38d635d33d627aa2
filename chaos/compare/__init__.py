"""Two runs side by side: what changed between them, and whether the second is worse."""
