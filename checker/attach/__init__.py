"""Adapters that turn a framework's operators into calls at seams."""
