"""What the gate proves beyond the form of objects: one proof a module."""
