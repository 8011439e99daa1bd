"""The fewest groups of supported nodes that make no cycle, in time linear in nodes and edges.

Promise: no way of cutting the graph covers all supported nodes with fewer groups.

Idea: along any path, supported nodes before and after an unsupported one cannot share a group, or the group would wait
for itself. So the longest alternation supported - unsupported - supported ... on a path is a lower bound. Give each
supported node the number of such changes still to come on the worst path from it to an output: its level. Nodes of one
level make one group. Levels never grow along an edge, and a path that leaves a group through an unsupported node
arrives at a lower level; so nothing ever comes back, and the number of groups is the lower bound.

Counting from the outputs back is what makes the groups those of torch's partitioner, which walks the graph in reverse
and adds each node to the group nearest to the outputs that takes it without a cycle.

Complexity: O(V + E).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fxpasses.dependencies import Dependencies

__all__ = ["alternation_levels", "contract", "fewer_borders", "number_by_first", "strong_units"]

Indices = npt.NDArray[np.int64]


def alternation_levels(dependencies: Dependencies, supported: Sequence[bool]) -> list[int]:
    """The level of each node, counted from the outputs back.

    Args:
        dependencies: Data and order edges.
        supported: One flag per node.

    Returns:
        For a supported node its level. For another one, the lowest level that a supported node before it can have.

    >>> chain = Dependencies.from_edges(5, [0, 1, 2, 3], [1, 2, 3, 4])
    >>> alternation_levels(chain, [True, True, False, True, False])
    [1, 1, 1, 0, 0]
    """
    levels = [0] * len(dependencies)
    successors = dependencies.successor_lists
    for node in reversed(dependencies.topological):
        if not (row := successors[node]):
            continue
        if supported[node]:
            levels[node] = max([levels[other] for other in row])
        else:
            levels[node] = max([levels[other] + supported[other] for other in row])
    return levels


def fewer_borders(dependencies: Dependencies, supported: Sequence[bool], levels: Sequence[int]) -> list[int]:
    """Move nodes between levels, where they may, so that fewer values cross a border; no level is added.

    One sweep in graph order. What a node's successors ask for at least is its given level, whatever is chosen for
    them; what its predecessors leave it at most is known when its turn comes. Between the two it takes the level of
    those inputs that would otherwise cross. Where the result is no better, the given levels stay. O(V + E).

    Args:
        dependencies: Data and order edges.
        supported: One flag per node.
        levels: The answer of :func:`alternation_levels`.

    Returns:
        Levels with the same promise as before.
    """
    chosen = list(levels)
    highest = [max(levels, default=0)] * len(chosen)
    for node in dependencies.topological:
        bounds = [
            highest[other] - (supported[other] and not supported[node])
            for other in dependencies.predecessor_lists[node]
        ]
        highest[node] = min(bounds, default=highest[node])
        if supported[node] and levels[node] < highest[node]:
            chosen[node] = _best_level(dependencies, supported, levels, chosen, node, highest[node])
        if supported[node]:
            highest[node] = chosen[node]
    if _count_borders(dependencies, supported, chosen) < _count_borders(dependencies, supported, levels):
        return chosen
    return list(levels)


def _best_level(
    dependencies: Dependencies,
    supported: Sequence[bool],
    levels: Sequence[int],
    chosen: Sequence[int],
    node: int,
    highest: int,
) -> int:
    inputs = [chosen[other] for other in dependencies.predecessor_lists[node] if supported[other]]
    users = [levels[other] if supported[other] else -1 for other in dependencies.successor_lists[node]]
    candidates = dict.fromkeys([levels[node], *(level for level in inputs if levels[node] < level <= highest)])
    return min(
        candidates, key=lambda level: sum(each != level for each in inputs) + any(each != level for each in users)
    )


def _count_borders(dependencies: Dependencies, supported: Sequence[bool], levels: Sequence[int]) -> int:
    """How many values of supported nodes are used outside of their group."""
    home = [level if flag else -1 for level, flag in zip(levels, supported, strict=True)]
    return sum(
        any(home[other] != home[node] for other in row)
        for node, row in enumerate(dependencies.successor_lists)
        if supported[node]
    )


def strong_units(dependencies: Dependencies, leader: Sequence[int]) -> list[int]:
    """Join groups until contracting them leaves no cycle.

    Groups that wait for each other, and what stands between them, become one: the strongly connected components of
    the contracted graph (Pearce's variant of Tarjan's algorithm, in scipy). O(V + E).

    Args:
        dependencies: Data and order edges.
        leader: For each node a number that the members of its group share.

    Returns:
        For each node the number of its unit; units are numbered in the order of their first nodes.
    """
    from scipy.sparse import csr_array  # here: scipy loads slowly, and most proposals keep nothing together
    from scipy.sparse.csgraph import connected_components

    _, groups = np.unique(np.asarray(leader, dtype=np.int64), return_inverse=True)
    count = int(groups.max(initial=-1)) + 1
    ones = np.ones(len(dependencies.sources), dtype=np.int8)
    edges = csr_array((ones, (groups[dependencies.sources], groups[dependencies.targets])), shape=(count, count))
    _, component = connected_components(edges, directed=True, connection="strong")
    return number_by_first(component[groups].tolist())


def contract(dependencies: Dependencies, unit_of: Sequence[int]) -> Dependencies:
    """The view in which each unit is one node, numbered as in ``unit_of``."""
    units = np.asarray(unit_of, dtype=np.int64)
    sources, targets = units[dependencies.sources], units[dependencies.targets]
    between = sources != targets
    return Dependencies.from_edges(int(units.max(initial=-1)) + 1, sources[between], targets[between])


def number_by_first(labels: Sequence[int]) -> list[int]:
    """Renumber labels 0, 1, 2, ... in the order in which they first appear."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(label, len(numbers)) for label in labels]
