"""Properties of what is said when an answer is not whole."""
