"""Placement where nodes may be computed more than once."""
