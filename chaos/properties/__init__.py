"""All properties, one a file; the id of a property is its path below this folder."""
