"""Pipelines: each device one part, and values flow forward only; a dynamic program over ideals, with certificates."""
