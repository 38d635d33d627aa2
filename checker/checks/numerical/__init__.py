"""Numerical layer: is the number that the operator returned one that its input allows?"""
