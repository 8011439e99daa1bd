"""Make a placement problem smaller without losing its best answers: units that must share a device become one.

For placements whose quotient is acyclic three rules are exact: nodes of a colocation class, or pinned to one device,
are one unit; so is each strongly connected group of units (two on one device with a third between them force that
third there); and a unit that costs nothing and has one neighbour goes where that neighbour goes.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import networkx as nx
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.problem import CostTables, Floats, PlacementProblem

__all__ = ["Units", "reduce_problem"]


@attrs.frozen(eq=False)
class Units:
    """The reduced problem: ``m`` units, ``k`` devices, ``q`` values that may cross; the units form a DAG.

    Args:
        unit_of: The unit of each node, ``(n,)``.
        members: The nodes of each unit, in topological order of the units.
        seconds: ``(m, k)``, ``inf`` where a device cannot run a unit.
        kept: Bytes of each unit, ``(m,)``.
        predecessors: The units that each unit needs.
        source: The unit that makes each value, ``(q,)``.
        uses: Pairs (value, unit that uses it), sorted by value, ``(u, 2)``; each value has at least one.
        makers: For each value the nodes whose outputs it stands for: same maker, same users.
    """

    unit_of: NDArray[np.int64]
    members: tuple[tuple[int, ...], ...]
    seconds: Floats
    kept: NDArray[np.int64]
    predecessors: tuple[tuple[int, ...], ...]
    source: NDArray[np.int64]
    uses: NDArray[np.int64]
    makers: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """The number of units."""
        return len(self.members)


def reduce_problem(problem: PlacementProblem, tables: CostTables) -> Units:
    """Apply the rules until none applies. Time O((nodes + edges) log nodes) and one sum per unit."""
    parts = nx.utils.UnionFind(range(len(tables.nodes)))
    position = {node: index for index, node in enumerate(tables.nodes)}
    pinned: dict[str, list[int]] = {}
    for node, device in problem.pinned.items():
        pinned.setdefault(device, []).append(position[node])
    for group in (*([position[node] for node in group] for group in problem.colocate), *pinned.values()):
        parts.union(*group)
    _join_components(parts, tables)
    _fold_free(parts, tables)
    return _units(parts, tables)


def _quotient(parts: nx.utils.UnionFind[int], tables: CostTables) -> nx.DiGraph[int]:
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(parts[index] for index in range(len(tables.nodes)))
    ends = ((parts[a], parts[b]) for a, b in tables.edges.tolist())
    quotient.add_edges_from((a, b) for a, b in ends if a != b)
    return quotient


def _join_components(parts: nx.utils.UnionFind[int], tables: CostTables) -> None:
    for component in list(nx.strongly_connected_components(_quotient(parts, tables))):
        parts.union(*sorted(component))


def _fold_free(parts: nx.utils.UnionFind[int], tables: CostTables) -> None:
    """Peel units that cost nothing and have one neighbour, as leaves are peeled off a tree."""
    quotient = _quotient(parts, tables)
    costly = (tables.seconds != 0).any(axis=1) | (tables.kept > 0)
    free = dict.fromkeys(quotient, True)
    for index in np.flatnonzero(costly).tolist():
        free[parts[index]] = False
    near = quotient.to_undirected()
    waiting = [unit for unit in quotient if free[unit]]
    while waiting:
        unit = waiting.pop()
        if unit in near and near.degree[unit] == 1:
            (neighbour,) = near[unit]
            near.remove_node(unit)
            parts.union(neighbour, unit)
            if free[neighbour]:
                waiting.append(neighbour)


def _units(parts: nx.utils.UnionFind[int], tables: CostTables) -> Units:
    quotient = _quotient(parts, tables)
    first: dict[int, int] = {}
    for index in range(len(tables.nodes)):
        first.setdefault(parts[index], index)
    order = list(nx.lexicographical_topological_sort(quotient, key=first.__getitem__))
    number = {root: unit for unit, root in enumerate(order)}
    unit_of = np.array([number[parts[index]] for index in range(len(tables.nodes))], dtype=np.int64)
    members: list[list[int]] = [[] for _ in order]
    for index, unit in enumerate(unit_of.tolist()):
        members[unit].append(index)
    seconds, kept = np.zeros((len(order), tables.seconds.shape[1])), np.zeros(len(order), dtype=np.int64)
    np.add.at(seconds, unit_of, tables.seconds)
    np.add.at(kept, unit_of, tables.kept)
    predecessors = tuple(tuple(sorted(number[before] for before in quotient.predecessors(root))) for root in order)
    source, uses, makers = _values(unit_of, tables)
    return Units(unit_of, tuple(map(tuple, members)), seconds, kept, predecessors, source, uses, makers)


def _values(
    unit_of: NDArray[np.int64], tables: CostTables
) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[tuple[int, ...], ...]]:
    users: dict[int, set[int]] = {}
    for maker, user in tables.edges.tolist():
        costs = tables.output[maker] > 0 or tables.fixed[maker] > 0
        if costs and unit_of[maker] != unit_of[user]:
            users.setdefault(maker, set()).add(int(unit_of[user]))
    alike: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for maker in sorted(users):
        alike.setdefault((int(unit_of[maker]), tuple(sorted(users[maker]))), []).append(maker)
    source = np.array([unit for unit, _users in alike], dtype=np.int64)
    pairs = [(value, user) for value, (_unit, found) in enumerate(alike) for user in found]
    return source, np.array(pairs, dtype=np.int64).reshape(-1, 2), _tuples(alike.values())


def _tuples(lists: Iterable[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, lists))
