"""What every rendered object is held to: one function a rule, one module a subject."""
