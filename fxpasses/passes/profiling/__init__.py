"""Measure what nodes take on real devices: seconds, and bytes beside their operands and results."""
