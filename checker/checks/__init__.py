"""All checks, one a file, in four layers; the id of a check is its path below this folder."""
