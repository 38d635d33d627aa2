"""Whether the gate sees anything: seeded faults in the templates, and who caught each."""
