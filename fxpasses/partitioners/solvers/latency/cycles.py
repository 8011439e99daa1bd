"""Nodes that wait for each other in a circle run as one: one after the other, and what they make leaves at the end."""

from __future__ import annotations

import attrs
import numpy as np

from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["in_turns", "without_cycles"]


def without_cycles(
    problem: PlacementProblem, tables: CostTables
) -> tuple[PlacementProblem, CostTables, tuple[Ints, ...]]:
    """The same latency without cycles: the first node of each takes what all take, the others follow it for nothing.

    Returns:
        The problem, in which the nodes of a cycle share a device; its costs; the nodes of each cycle.
        Time O(nodes × devices + edges).
    """
    cycles = _cycles(tables)
    if not cycles:
        return problem, tables, ()
    seconds, first_of = tables.seconds.copy(), np.arange(len(tables.nodes))
    for members in cycles:
        first, *others = members.tolist()
        seconds[first] = tables.seconds[members].sum(axis=0)
        seconds[others] = np.where(np.isfinite(tables.seconds[others]), 0.0, np.inf)
        first_of[members] = first
    source, user = tables.edges.T
    apart = first_of[source] != first_of[user]
    entering = np.stack([source[apart], first_of[user[apart]]], axis=1)
    inside = [np.stack([np.full(len(own) - 1, own[0]), own[1:]], axis=1) for own in cycles]
    groups = [[tables.nodes[node] for node in members.tolist()] for members in cycles]
    return (
        attrs.evolve(problem, colocate=(*problem.colocate, *groups)),
        attrs.evolve(tables, seconds=seconds, edges=np.unique(np.concatenate([entering, *inside]), axis=0)),
        cycles,
    )


def in_turns(tables: CostTables, cycles: tuple[Ints, ...], device_of: Ints, start: Floats) -> Floats:
    """When each node starts: the first of each cycle when all may, the others after it in their order."""
    start = start.copy()
    for members in cycles:
        taken = tables.seconds[members, device_of[members]]
        start[members] = start[members[0]] + np.cumsum(taken) - taken
    return start


def _cycles(tables: CostTables) -> tuple[Ints, ...]:
    """The nodes of each strongly connected group of several, in the order of the graph."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count, size = len(tables.nodes), len(tables.edges)
    graph = coo_array((np.ones(size, dtype=np.int8), (tables.edges[:, 0], tables.edges[:, 1])), shape=(count, count))
    parts, label = connected_components(graph, directed=True, connection="strong")
    if parts == count:
        return ()
    order = np.argsort(label, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(label[order])) + 1)
    return tuple(sorted((group for group in groups if len(group) > 1), key=lambda group: int(group[0])))
