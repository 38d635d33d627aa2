"""The chart's values, declared once: schema, default file and documentation come from here."""
