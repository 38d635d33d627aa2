"""Commands of `tocsin`, one group a file."""
