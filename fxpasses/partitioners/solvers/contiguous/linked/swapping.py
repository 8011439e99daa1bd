"""Let devices swap their nodes, where links differ: the search counts links at their best, the answer as they are."""

from __future__ import annotations

import itertools

import numpy as np

from fxpasses.partitioners.solvers.reduced.tables import CostTables, Ints, evaluate

__all__ = ["links_differ", "swapped"]

MAX_WORK = 30_000_000
"""Nodes that all evaluations may look at together."""


def links_differ(tables: CostTables) -> bool:
    """Whether some pair of devices has another link than the others."""
    apart = ~np.eye(len(tables.memory), dtype=bool)
    kinds = np.stack([tables.latency[apart], tables.per_byte[apart]], axis=1)
    return len(np.unique(kinds, axis=0)) > 1


def swapped(tables: CostTables, device_of: Ints, objective: str) -> Ints:
    """The order of devices in which they take each other's place: ``result[d]`` gets the nodes of ``d``.

    The best swap of two devices is made as long as one helps; budgets and capabilities are kept. Time O(devices² ×
    nodes) for each swap.
    """
    count = len(tables.memory)
    takes = np.arange(count)
    best = evaluate(tables, device_of).rank(objective)
    work = MAX_WORK // max(1, len(device_of))
    while (work := work - count * (count - 1) // 2) >= 0:
        better = None
        for first, second in itertools.combinations(range(count), 2):
            other = takes.copy()
            other[[first, second]] = takes[[second, first]]
            figures = evaluate(tables, other[device_of])
            if (figures.kept <= tables.memory).all() and figures.rank(objective) < best:
                best, better = figures.rank(objective), other
        if better is None:
            break
        takes = better
    return takes
