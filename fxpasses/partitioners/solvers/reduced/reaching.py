"""Which nodes paths lead to, as masks of bits: is a set convex, and what must come along when a part of it moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs
import networkx as nx
import numpy as np

from fxpasses.partitioners.solvers.reduced.tables import CostTables, Ints

__all__ = ["Reach", "convex_hulls"]


@attrs.frozen(eq=False)
class Reach:
    """For each unit the masks of its nodes, of the nodes after them, and of those before them."""

    own: tuple[int, ...]
    after: tuple[int, ...]
    before: tuple[int, ...]
    unit_of: Ints
    edges: tuple[tuple[int, int], ...]
    reach: tuple[int, ...]

    @classmethod
    def of(cls, unit_of: Ints, tables: CostTables) -> Reach:
        """Time O(nodes × edges / 64)."""
        edges = tables.precedence
        after = _masks(len(unit_of), edges)
        before = _masks(len(unit_of), edges[:, ::-1])
        units = int(unit_of.max()) + 1
        own, following, leading = [0] * units, [0] * units, [0] * units
        for node, unit in enumerate(unit_of.tolist()):
            own[unit] |= 1 << node
            following[unit] |= after[node]
            leading[unit] |= before[node]
        pairs = tuple((a, b) for a, b in edges.tolist())
        return cls(tuple(own), tuple(following), tuple(leading), unit_of, pairs, tuple(after))

    def is_convex(self, units: Iterable[int]) -> bool:
        """Whether no path leaves the nodes of some units and comes back."""
        own = after = before = 0
        for unit in units:
            own |= self.own[unit]
            after |= self.after[unit]
            before |= self.before[unit]
        return not after & before & ~own

    def following(self, unit: int, among: Sequence[int]) -> tuple[int, ...]:
        """A unit and those of some others that it leads to."""
        return self._closed(unit, among, self.after)

    def leading(self, unit: int, among: Sequence[int]) -> tuple[int, ...]:
        """A unit and those of some others that lead to it."""
        return self._closed(unit, among, self.before)

    def _closed(self, unit: int, among: Sequence[int], reach: Sequence[int]) -> tuple[int, ...]:
        found, mask = {unit: None}, reach[unit]
        grows = True
        while grows:
            grows = False
            for other in among:
                if other not in found and self.own[other] & mask:
                    found[other], grows = None, True
                    mask |= reach[other]
        return tuple(sorted(found))

    def triples(self) -> Ints:
        """Units (first, next on a path, somewhere later on it), each once: who has the outer two has the middle one."""
        found: dict[tuple[int, int, int], None] = {}
        for a, b in self.edges:
            first, middle = int(self.unit_of[a]), int(self.unit_of[b])
            if first == middle:
                continue
            for unit, own in enumerate(self.own):
                if unit != middle and own & self.reach[b]:
                    found[first, middle, unit] = None
        return np.array(list(found), dtype=np.int64).reshape(-1, 3)


def _masks(count: int, edges: Ints) -> list[int]:
    """The nodes that paths lead to from each node; nodes on a cycle lead to each other."""
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(edges.tolist())
    condensed = nx.condensation(graph)
    own = {part: sum(1 << node for node in facts["members"]) for part, facts in condensed.nodes(data=True)}
    after: dict[int, int] = {}
    for part in reversed(list(nx.topological_sort(condensed))):
        after[part] = own[part] if own[part].bit_count() > 1 else 0
        for following in condensed.successors(part):
            after[part] |= own[following] | after[following]
    part_of = condensed.graph["mapping"]
    return [after[part_of[node]] for node in range(count)]


def convex_hulls(part: Ints, tables: CostTables) -> Ints:
    """Pairs of nodes that share a device because a path leads from one node of a part to another over them."""
    edges = tables.precedence
    after, before = _masks(len(part), edges), _masks(len(part), edges[:, ::-1])
    pairs = []
    for own in np.flatnonzero(np.bincount(part) > 1).tolist():
        nodes = np.flatnonzero(part == own).tolist()
        following = leading = 0
        for node in nodes:
            following |= after[node]
            leading |= before[node]
        between = following & leading
        while between:
            bit = between & -between
            between ^= bit
            pairs.append((nodes[0], bit.bit_length() - 1))
    for node, mask in enumerate(after):
        if mask >> node & 1:  # on a cycle: with the first node of it
            cycle = mask & before[node]
            pairs.append((node, (cycle & -cycle).bit_length() - 1))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)
