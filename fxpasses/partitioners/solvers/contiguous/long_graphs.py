"""Long graphs, on which fewer things are tried."""

from __future__ import annotations

from fxpasses.partitioners.solvers.reduced.reducing import Units

__all__ = ["MAX_UNITS", "is_long"]

LONG = 2000
"""Units from which on few linear orders are cut, coarsely first."""
MAX_UNITS = 8000
"""Units up to which all ideals are asked for."""


def is_long(units: Units) -> bool:
    """Whether a problem is long."""
    return units.size > LONG
