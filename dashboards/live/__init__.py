"""The live page: what is true now, as plain data, and how it looks in a browser and a terminal."""
