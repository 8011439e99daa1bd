"""Ready-made checks: plain statements about a graph that raise when they do not hold."""

from fxpasses.checks.linting import lint, well_formed

__all__ = ["lint", "well_formed"]
