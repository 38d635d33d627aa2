"""Words, operator calls, seams and protocols that every part of Tocsin shares."""
