"""Semantic layer: does what goes in and comes out mean what it must?"""
