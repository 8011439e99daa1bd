"""A smaller problem for the shortest latency: nodes that had better stay together run as one.

An edge from a node that has no other user, or to a node that has no other input, can be joined without making a cycle,
also many of them at once (the matching of acyclic multilevel partitioners: Herrmann, Özkaya, Uçar, Kaya & Çatalyürek,
"Multilevel algorithms for acyclic partitioning of directed acyclic graphs", SIAM Journal on Scientific Computing 41(4),
2019). A joined node starts when all its inputs are there, and its outputs are there when it ends. Chains are left as
they are where a graph is small enough to be searched: a value that is sent in the middle of one is there earlier.
"""

from __future__ import annotations

import itertools
import math

import attrs
import numpy as np

from fxpasses.partitioners.solvers.flat_lists import flat_lists
from fxpasses.partitioners.solvers.reduced.columns import equal_columns
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["Joined", "join_until", "order_of_groups"]

SHARE = 0.25
"""The most that a joined unit takes of the smallest memory."""
MANY = 8000
"""Neighbours in the order of the groups that may have to stay apart: as many groups would be left."""


@attrs.frozen(eq=False)
class Joined:
    """Nodes and units in groups, numbered from 0: the group of each node ``(n,)``, and of each unit ``(m,)``."""

    node: Ints
    unit: Ints

    @property
    def size(self) -> int:
        """The number of groups of nodes."""
        return int(self.node.max(initial=-1)) + 1

    def model(self, model: LoadModel) -> LoadModel:
        """What the groups of units need."""
        return model.merged(self.unit)

    def unit_of(self, unit_of: Ints) -> Ints:
        """The group of units of each group of nodes."""
        found = np.zeros(self.size, dtype=np.int64)
        found[self.node] = self.unit[unit_of]
        return found

    def tables(self, tables: CostTables) -> CostTables:
        """The costs of the groups: seconds are added; what leaves is as large as the largest value that does."""
        size = self.size
        first, kind = equal_columns(tables.seconds)
        seconds = np.zeros((size, len(first)))
        np.add.at(seconds, self.node, tables.seconds[:, first])
        ends = self.node[tables.edges]
        leaves = np.zeros(len(self.node), dtype=bool)
        leaves[tables.edges[ends[:, 0] != ends[:, 1], 0]] = True
        output, fixed = np.zeros(size), np.zeros(size)
        np.maximum.at(output, self.node[leaves], tables.output[leaves])
        np.maximum.at(fixed, self.node[leaves], tables.fixed[leaves])
        edges = np.stack(_pairs(ends, size)[:2], axis=1)
        return attrs.evolve(tables, seconds=seconds[:, kind], output=output, fixed=fixed, edges=edges)

    def homes(self, home: Ints) -> Ints:
        """The assignment of groups from one of units that agrees within each, ``(m,)``."""
        return home[np.unique(self.unit, return_index=True)[1]]

    def order(self, order: Ints, topological: Ints) -> Ints:
        """An order of the nodes from one of the groups."""
        place = np.empty(self.size, dtype=np.int64)
        place[order] = np.arange(self.size)
        return topological[np.argsort(place[self.node[topological]], kind="stable")]


class _Groups:
    """Units that are joined step by step: a forest, with what each tree needs."""

    def __init__(self, model: LoadModel) -> None:
        self.above = list(range(model.size))
        self.kept = model.kept.tolist()
        self.kinds = [row.tobytes() for row in model.banned]
        self.room = float(model.memory.min(initial=math.inf)) * SHARE

    def root(self, unit: int) -> int:
        while self.above[unit] != unit:
            self.above[unit] = unit = self.above[self.above[unit]]
        return unit

    def join(self, one: int, other: int) -> bool:
        """Join two groups, unless they may not run on the same devices or keep too much together."""
        one, other = self.root(one), self.root(other)
        if one == other:
            return True
        kept = self.kept[one] + self.kept[other]
        if self.kinds[one] != self.kinds[other] or (kept > self.room and min(self.kept[one], self.kept[other]) > 0):
            return False
        one, other = min(one, other), max(one, other)
        self.above[other], self.kept[one] = one, kept
        return True

    def numbered(self) -> Ints:
        roots = [self.root(unit) for unit in range(len(self.above))]
        numbers: Ints = np.unique(np.array(roots, dtype=np.int64), return_inverse=True)[1].astype(np.int64)
        return numbers


def join_until(
    tables: CostTables, model: LoadModel, unit_of: Ints, topological: Ints, goal: int, place: Ints
) -> Joined:
    """Join nodes until there are at most so many groups, values that take long to send first.

    Groups take at most a share of all seconds. When no edge can be joined any more, what stands side by side in the
    order is. Time O((nodes + edges) · rounds).

    Args:
        tables: The nodes.
        model: What units need, and where they may be.
        unit_of: The unit of each node.
        topological: An order of the nodes in which each stands after what it needs.
        goal: So many groups.
        place: A number of each unit: those of different numbers stay apart, ``(m,)``.
    """
    seconds = np.where(np.isfinite(tables.seconds), tables.seconds, 0.0).mean(axis=1)
    sending = tables.fixed + tables.latency.max() * (tables.output > 0) + tables.output * tables.per_byte.max()
    units = _Groups(model)
    group = np.arange(len(seconds))
    largest = 4 * float(seconds.sum()) / goal
    while (size := int(group.max(initial=-1)) + 1) > goal:
        joined = _round(tables.edges, group, unit_of, units, seconds, sending, largest, place.tolist())
        if int(joined.max(initial=-1)) + 1 > 0.95 * size:
            return Joined(_in_order(joined, unit_of, units, tables, topological, goal, place), units.numbered())
        group = joined
    return Joined(group, units.numbered())


def _round(
    edges: Ints,
    group: Ints,
    unit_of: Ints,
    units: _Groups,
    seconds: Floats,
    sending: Floats,
    largest: float,
    place: list[int],
) -> Ints:
    """Each group joins at most one other."""
    size = int(group.max(initial=-1)) + 1
    load = np.bincount(group, seconds, size)
    source, target, first = _pairs(group[edges], size)
    single = (np.bincount(source, minlength=size)[source] == 1) | (np.bincount(target, minlength=size)[target] == 1)
    together = load[source] + load[target]
    chosen = np.flatnonzero(single & (together <= largest))
    rating = sending[edges[first[chosen], 0]] / (together[chosen] + 1e-300)
    chosen = chosen[np.argsort(-rating, kind="stable")]
    some = np.zeros(size, dtype=np.int64)
    some[group] = unit_of  # the unit of a node of each group
    unit = some.tolist()
    partner, taken = list(range(size)), bytearray(size)
    for one, other in zip(source[chosen].tolist(), target[chosen].tolist(), strict=True):
        if taken[one] or taken[other]:
            continue
        a, b = unit[one], unit[other]
        if place[a] == place[b] and units.join(a, b):
            taken[one] = taken[other] = 1
            partner[other] = one
    joined: Ints = np.unique(np.array(partner)[group], return_inverse=True)[1].astype(np.int64)
    return joined


def _pairs(ends: Ints, size: int) -> tuple[Ints, Ints, Ints]:
    """Edges between different groups, each once, sorted: where from, where to, and the first that is such a one."""
    crossing = np.flatnonzero(ends[:, 0] != ends[:, 1])
    codes, first = np.unique(ends[crossing, 0] * size + ends[crossing, 1], return_index=True)
    return codes // size, codes % size, crossing[first]


def _in_order(
    group: Ints, unit_of: Ints, units: _Groups, tables: CostTables, topological: Ints, goal: int, place: Ints
) -> Ints:
    """Join what stands side by side in an order of the groups, where that is allowed."""
    some = np.zeros(int(group.max(initial=-1)) + 1, dtype=np.int64)
    some[group[topological]] = topological
    unit = unit_of[some]
    own, places = unit.tolist(), place[unit].tolist()
    order = order_of_groups(group, tables)
    per_group = max(2, math.ceil(len(order) / goal))
    if sum(places[one] != places[other] for one, other in itertools.pairwise(order)) > MANY:
        order = _by_level(order, group, tables, place[unit])
    number = np.zeros(len(order), dtype=np.int64)
    current, count, last = -1, per_group, order[0]
    for one in order:
        if count >= per_group or places[last] != places[one] or not units.join(own[last], own[one]):
            current, count = current + 1, 0
        number[one], count, last = current, count + 1, one
    joined: Ints = number[group]
    return joined


def _by_level(order: list[int], group: Ints, tables: CostTables, place: Ints) -> list[int]:
    """Groups in a topological order, by the longest way that leads to them, then those of one place together.

    What runs at the same time in different places stands between each other else, and hardly any two could be joined.
    """
    source, target, _first = _pairs(group[tables.edges], len(place))
    begins, users = (part.tolist() for part in flat_lists(source, target, len(place)))
    level = [0] * len(place)
    for one in order:
        for other in users[begins[one] : begins[one + 1]]:
            level[other] = max(level[other], level[one] + 1)
    found = np.array(order, dtype=np.int64)
    by_level: list[int] = found[np.lexsort((place[found], np.array(level)[found]))].tolist()
    return by_level


def order_of_groups(group: Ints, tables: CostTables) -> list[int]:
    """Groups of nodes in a topological order; those on a cycle are left out. Time O(nodes + edges log edges)."""
    size = int(group.max(initial=-1)) + 1
    source, target, _first = _pairs(group[tables.edges], size)
    missing = np.bincount(target, minlength=size).tolist()
    begins, users = (part.tolist() for part in flat_lists(source, target, size))
    found = [one for one in range(size) if not missing[one]]
    for one in found:
        for other in users[begins[one] : begins[one + 1]]:
            missing[other] -= 1
            if not missing[other]:
                found.append(other)
    return found
