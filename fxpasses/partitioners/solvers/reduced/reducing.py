"""Make a placement problem smaller without losing its best answers: units that must share a device become one.

Nodes of a colocation class, nodes pinned to one device, and a backward node with its forward one are one unit. For
placements whose quotient is acyclic so is each strongly connected group of units: two on one device with a third
between them force that third there. (For convex sets that holds within one unit.) And a unit that costs nothing and has
one neighbour goes where that neighbour goes.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from functools import cached_property

import attrs
import numpy as np

from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.reduced.columns import equal_columns
from fxpasses.partitioners.solvers.reduced.reaching import convex_hulls
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Floats, Ints

__all__ = ["Units", "contract", "cycle_of", "merge", "only_there", "reduce_problem", "with_bytes"]


@attrs.frozen(eq=False)
class Units:
    """The reduced problem: ``m`` units, ``k`` devices, ``q`` values that may cross, ``p`` keys that are shared.

    For pipelines the units form a DAG, and are numbered in a topological order.

    Args:
        unit_of: The unit of each node, ``(n,)``.
        seconds: ``(m, k)``, ``inf`` where a device cannot run a unit.
        kept: Bytes of each unit, with the shared keys that only it names, ``(m,)``.
        live: Bytes alive while each unit runs, ``(m,)``.
        shared: Bytes of each key that several units name, ``(p,)``.
        shares: Pairs (key, unit that names it), sorted, ``(·, 2)``.
        before: Pairs (a, b) of units: b must not be on an earlier device than a, ``(·, 2)``.
        source: The unit that makes each value, ``(q,)``.
        uses: Pairs (value, unit that uses it), sorted by value, ``(u, 2)``; each value has at least one.
        outputs: Pairs (value, node whose output it stands for), sorted by value: same unit, same users.
    """

    unit_of: Ints
    seconds: Floats
    kept: Ints
    live: Ints
    shared: Ints
    shares: Ints
    before: Ints
    source: Ints
    uses: Ints
    outputs: Ints

    @property
    def size(self) -> int:
        """The number of units."""
        return len(self.kept)

    def homes(self, device_of: Ints) -> Ints:
        """The device of each unit, ``(m,)``, where nodes of one unit share theirs."""
        home = np.zeros(self.size, dtype=np.int64)
        home[self.unit_of] = device_of
        return home

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """The units that must not be on a later device than each unit. Time O(units)."""
        return _tuples(_grouped(self.before[:, ::-1], self.size))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """The units that must not be on an earlier device than each unit. Time O(units)."""
        return _tuples(_grouped(self.before, self.size))

    @cached_property
    def keys(self) -> tuple[tuple[int, ...], ...]:
        """The shared keys that each unit names. Time O(shares)."""
        return _tuples(_grouped(self.shares[:, ::-1], self.size))

    @cached_property
    def sharers(self) -> tuple[tuple[int, ...], ...]:
        """The units that name each shared key. Time O(shares)."""
        return _tuples(_grouped(self.shares, len(self.shared)))

    @cached_property
    def used(self) -> tuple[tuple[int, ...], ...]:
        """The values that each unit uses. Time O(uses)."""
        return _tuples(_grouped(self.uses[:, ::-1], self.size))

    @cached_property
    def made(self) -> tuple[tuple[int, ...], ...]:
        """The values that each unit makes. Time O(values)."""
        return _tuples(_grouped(np.stack([self.source, np.arange(len(self.source))], axis=1), self.size))

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """The units that use each value. Time O(uses)."""
        return _tuples(_grouped(self.uses, len(self.source)))

    @cached_property
    def makers(self) -> tuple[tuple[int, ...], ...]:
        """The nodes whose outputs each value stands for. Time O(nodes)."""
        return _tuples(_grouped(self.outputs, len(self.source)))

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of each unit. Time O(nodes)."""
        return _tuples(_grouped(np.stack([self.unit_of, np.arange(len(self.unit_of))], axis=1), self.size))


def reduce_problem(problem: PlacementProblem, tables: CostTables) -> Units:
    """Apply the rules until none applies. Time O((nodes + edges) log nodes) and one sum per unit."""
    part = _same_device(problem, tables)
    if problem.contiguity == "pipeline":
        part = _merged(part, part[tables.precedence], strong=True)
    else:  # nodes that wait for each other in a circle stay together in any case
        part = _with_cycles(part, tables.edges)
    if problem.contiguity == "convex":
        part = _hulled(part, tables)
    part = _fold_free(part, tables)
    return _units(part, tables, problem.contiguity == "pipeline")


def cycle_of(count: int, edges: Ints) -> Ints:
    """The number of the cycle that each node is on; of its own where it is on none."""
    return _merged(np.arange(count), edges, strong=True)


def _with_cycles(part: Ints, edges: Ints) -> Ints:
    """Join the parts of the nodes of each cycle: that of every node with that of the first node of its cycle."""
    cycle = cycle_of(len(part), edges)
    _cycles, first = np.unique(cycle, return_index=True)
    return _merged(part, np.stack([part, part[first[cycle]]], axis=1))


def _hulled(part: Ints, tables: CostTables) -> Ints:
    """Join what lies on a path between two nodes of one part, until nothing does."""
    if int(part.max()) + 1 == len(part):  # no groups: only cycles
        return _merged(part, part[tables.precedence], strong=True)
    while True:
        joined = _merged(part, part[convex_hulls(part, tables)])
        if joined.max() == part.max():
            return part
        part = joined


def _merged(part: Ints, pairs: Ints, *, strong: bool = False) -> Ints:
    """Join the parts that pairs of them connect; ``strong``: only those on a cycle. Parts are numbered from 0."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = int(part.max()) + 1
    graph = coo_array((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
    _count, label = connected_components(graph, directed=strong, connection="strong")
    joined: Ints = label.astype(np.int64)[part]
    return joined


def _same_device(problem: PlacementProblem, tables: CostTables) -> Ints:
    """Join what must share a device: colocation classes, what only one device runs, backward and forward nodes."""
    position = {node: index for index, node in enumerate(tables.nodes)}
    groups = ([position[node] for node in group] for group in problem.colocate)
    pairs = np.array([pair for group in groups for pair in itertools.pairwise(group)], dtype=np.int64).reshape(-1, 2)
    backward = np.flatnonzero(tables.forward >= 0)
    ties = np.stack([backward, tables.forward[backward]], axis=1)
    only = only_there(tables.seconds) if len(tables.memory) > 1 else pairs[:0]
    return _merged(np.arange(len(tables.nodes)), np.concatenate([pairs, ties, only]))


def only_there(seconds: Floats) -> Ints:
    """Pairs of rows that the same device alone can run, ``(p, 2)``; all rows of a device hang together by them."""
    allowed = np.isfinite(seconds)
    only = np.flatnonzero(allowed.sum(axis=1) == 1)
    device = allowed[only].argmax(axis=1)
    order = np.argsort(device, kind="stable")
    same = np.flatnonzero(np.diff(device[order]) == 0)
    return np.stack([only[order[same]], only[order[same + 1]]], axis=1)


def _between(part: Ints, pairs: Ints) -> Ints:
    """Pairs of nodes as pairs of different parts, each once, sorted."""
    ends = part[pairs]
    ends = ends[ends[:, 0] != ends[:, 1]]
    size = int(part.max()) + 1
    found = np.unique(ends[:, 0] * size + ends[:, 1])
    return np.stack([found // size, found % size], axis=1)


def _fold_free(part: Ints, tables: CostTables) -> Ints:
    """Peel units that cost nothing and have one neighbour, as leaves are peeled off a tree."""
    costly = (tables.seconds != 0).any(axis=1) | (tables.kept > 0) | (tables.live > 0)
    costly[tables.shares[:, 1]] = True
    size = int(part.max()) + 1
    free = np.ones(size, dtype=bool)
    free[part[costly]] = False
    if not free.any():
        return part
    pairs = np.sort(_between(part, tables.edges), axis=1)
    pairs = np.unique(pairs, axis=0)
    degree = np.bincount(pairs.ravel(), minlength=size)
    near = np.zeros(size, dtype=np.int64)  # exclusive or of the neighbours: the neighbour itself once one is left
    np.bitwise_xor.at(near, pairs[:, 0], pairs[:, 1])
    np.bitwise_xor.at(near, pairs[:, 1], pairs[:, 0])
    folds = []
    waiting = np.flatnonzero(free & (degree == 1)).tolist()
    while waiting:
        unit = waiting.pop()
        if degree[unit] != 1:
            continue
        neighbour = int(near[unit])
        folds.append((unit, neighbour))
        degree[unit], degree[neighbour] = 0, degree[neighbour] - 1
        near[neighbour] ^= unit
        if free[neighbour] and degree[neighbour] == 1:
            waiting.append(neighbour)
    return _merged(part, np.array(folds, dtype=np.int64).reshape(-1, 2))


def _numbered(part: Ints, before: Ints, *, is_acyclic: bool = True) -> Ints:
    """Number parts in topological order, of those that may come next the one whose first node stands first."""
    pairs = _between(part, before)
    size = int(part.max()) + 1
    first = np.full(size, len(part), dtype=np.int64)
    np.minimum.at(first, part, np.arange(len(part)))
    rank = np.empty(size, dtype=np.int64)
    if not is_acyclic or (first[pairs[:, 0]] < first[pairs[:, 1]]).all():
        rank[np.argsort(first)] = np.arange(size)
        return rank[part]
    missing = np.bincount(pairs[:, 1], minlength=size).tolist()
    following = _grouped(pairs, size)
    ready = [(int(first[unit]), unit) for unit in range(size) if not missing[unit]]
    heapq.heapify(ready)
    for number in range(size):
        unit = heapq.heappop(ready)[1]
        rank[unit] = number
        for user in following[unit]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (int(first[user]), user))
    return rank[part]


def _grouped(pairs: Ints, size: int) -> list[list[int]]:
    """The second of each pair, by the first; in the order of the pairs."""
    order = np.argsort(pairs[:, 0], kind="stable")
    second = pairs[order, 1].tolist()
    stops = np.cumsum(np.bincount(pairs[:, 0], minlength=size)).tolist()
    return [second[start:stop] for start, stop in itertools.pairwise([0, *stops])]


def _sums(unit_of: Ints, seconds: Floats) -> Floats:
    """The seconds of each unit; what devices have in common is added up once."""
    order = np.argsort(unit_of, kind="stable")
    starts = np.flatnonzero(np.diff(unit_of[order], prepend=-1))
    if len(starts) == len(order):
        return seconds[order]
    first, kind = equal_columns(seconds)
    summed: Floats = np.add.reduceat(seconds[:, first][order], starts, axis=0)
    return summed[:, kind]


def _units(part: Ints, tables: CostTables, is_acyclic: bool) -> Units:
    unit_of = _numbered(part, tables.precedence, is_acyclic=is_acyclic)
    crosses = ((tables.output > 0) | (tables.fixed > 0))[tables.edges[:, 0]]
    maker, user = tables.edges[crosses, 0], unit_of[tables.edges[crosses, 1]]
    return Units(
        unit_of,
        _sums(unit_of, tables.seconds),
        *_bytes(unit_of, tables),
        _between(unit_of, tables.precedence),
        *_values(unit_of, maker, user, np.stack([np.arange(len(unit_of))] * 2, axis=1)),
    )


def _bytes(unit_of: Ints, tables: CostTables) -> tuple[Ints, Ints, Ints, Ints]:
    """What units keep and have alive, the keys that several share, and the pairs (key, unit)."""
    size = int(unit_of.max()) + 1
    kept, live = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    np.add.at(kept, unit_of, tables.kept)
    np.maximum.at(live, unit_of, tables.live)
    return kept, live, *_shares(unit_of, tables.shared, tables.shares, kept)


def with_bytes(units: Units, tables: CostTables) -> Units:
    """The same units with the bytes that other tables of the same nodes have. Time O(nodes + shares)."""
    kept, live, shared, shares = _bytes(units.unit_of, tables)
    return attrs.evolve(units, kept=kept, live=live, shared=shared, shares=shares)


def contract(units: Units, order: Ints, stops: Ints) -> Units:
    """Join the units between two stops of a topological order; what comes out is numbered along it.

    Time O(units × devices + uses log uses).
    """
    place = np.empty(units.size, dtype=np.int64)
    place[order] = np.arange(units.size)
    return _joined(units, np.searchsorted(stops, place, side="right") - 1)


def merge(units: Units, first: Ints, second: Ints) -> Units:
    """Join pairs of units of a pipeline, with what lies between them."""
    part = _merged(np.arange(units.size), np.stack([first, second], axis=1))
    part = _merged(part, part[units.before], strong=True)
    return _joined(units, _numbered(part, units.before))


def _joined(units: Units, part: Ints) -> Units:
    size = int(part.max()) + 1
    kept, live = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
    np.add.at(kept, part, units.kept)
    np.maximum.at(live, part, units.live)
    shared, shares = _shares(part, units.shared, units.shares, kept)
    return Units(
        part[units.unit_of],
        _sums(part, units.seconds),
        kept,
        live,
        shared,
        shares,
        _between(part, units.before),
        *_values(part[units.source], units.uses[:, 0], part[units.uses[:, 1]], units.outputs),
    )


def _shares(unit_of: Ints, sizes: Ints, pairs: Ints, kept: Ints) -> tuple[Ints, Ints]:
    """The keys that several units name; the bytes of the others are added to ``kept``."""
    size = len(kept)
    found = np.unique(pairs[:, 0] * size + unit_of[pairs[:, 1]])
    key, unit = found // size, found % size
    alone = np.bincount(key, minlength=len(sizes)) == 1
    np.add.at(kept, unit[alone[key]], sizes[key[alone[key]]])
    number = np.cumsum(~alone) - 1
    own = ~alone[key]
    return sizes[~alone], np.stack([number[key[own]], unit[own]], axis=1)


def _values(unit_of: Ints, maker: Ints, user: Ints, outputs: Ints) -> tuple[Ints, Ints, Ints]:
    """Sources, uses and outputs of values, from pairs (maker, unit that uses it); same unit and users are one value.

    ``unit_of`` is the unit of each maker, ``outputs`` are pairs (maker, node). Sets of users are compared by two sums
    of random numbers of 63 bits.
    """
    size = int(max(unit_of.max(initial=0), user.max(initial=0))) + 1
    crosses = unit_of[maker] != user
    found = np.unique(maker[crosses] * size + user[crosses])
    maker, user = found // size, found % size
    random = np.random.default_rng(0).integers(2**63, size=(2, size))
    first = np.flatnonzero(np.diff(maker, prepend=-1))
    each = maker[first]
    sums = [np.add.reduceat(row[user], first) for row in random] if len(first) else [first, first]
    order = np.lexsort((each, *sums, unit_of[each]))
    keys = np.stack([unit_of[each], *sums], axis=1)[order]
    fresh = np.append(True, (keys[1:] != keys[:-1]).any(axis=1)) if len(order) else np.zeros(0, dtype=bool)
    value_of = np.full(len(unit_of), -1, dtype=np.int64)
    value_of[each[order]] = np.cumsum(fresh) - 1
    chosen = np.zeros(len(unit_of), dtype=bool)
    chosen[each[order[fresh]]] = True
    uses = np.stack([value_of[maker], user], axis=1)[chosen[maker]]
    pairs = np.stack([value_of[outputs[:, 0]], outputs[:, 1]], axis=1)
    pairs = pairs[pairs[:, 0] >= 0]
    return (
        unit_of[each[order[fresh]]],
        uses[np.argsort(uses[:, 0], kind="stable")],
        pairs[np.argsort(pairs[:, 0], kind="stable")],
    )


def _tuples(lists: Iterable[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, lists))
