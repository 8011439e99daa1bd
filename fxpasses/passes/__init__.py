"""Transformations: each pass is one idea in one file."""
