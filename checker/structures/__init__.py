"""The form that each operator's call must have: one rule an operator."""
