"""How long a fault lasts: every rung of the recovery ladder, timed on the engine."""
