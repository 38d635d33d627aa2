"""What the gateway gathers for the live page, and how it reaches those who watch."""
