"""Pipelines over links that differ: which device stands beside which decides what values cost."""
