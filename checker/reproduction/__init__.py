"""From a recorded failing call to the smallest call that fails in the same way, as a test."""
