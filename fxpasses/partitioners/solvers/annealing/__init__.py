"""Annealing of assignments, compiled: of free ones, and of pipelines, whose devices stand in an order."""
