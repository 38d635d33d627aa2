"""`make bench`: what checking costs, paired and interleaved, beside what it catches."""
