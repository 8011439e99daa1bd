"""The units of a reduced problem as nodes of the graph: what moves from one device to another together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch.fx import Node

from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables

__all__ = ["MovableUnit", "movable_units"]

MovableUnit = tuple[tuple[Node, ...], tuple[str, ...]]
"""The operators of a unit, and the devices that can run all of them."""


def movable_units(tables: CostTables, units: Units, names: Sequence[str]) -> tuple[MovableUnit, ...]:
    """The units that have operators, with the devices on which each may be, by name."""
    found = []
    for own, allowed in zip(units.members, np.isfinite(units.seconds), strict=True):
        nodes = tuple(node for at in own if isinstance(node := tables.nodes[at], Node))
        if nodes:
            found.append((nodes, tuple(name for name, fine in zip(names, allowed.tolist(), strict=True) if fine)))
    return tuple(found)
