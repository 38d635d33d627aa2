"""The fault × detector matrix: every kind of fault alone, and which detector saw it how often."""
