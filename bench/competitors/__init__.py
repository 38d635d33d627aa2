"""Other people's detectors behind one interface, for the same tables as ours."""
