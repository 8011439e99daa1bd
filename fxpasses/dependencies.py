"""A dense view of a graph: which node waits for which, numbered 0 to n - 1 in graph order.

Edges are the data edges of the graph and the order edges of :mod:`fxpasses.effects`. All partitioners, the splitter and
the rewriter ask this one structure. Node numbers are positions in :attr:`Dependencies.nodes`; numbers go in, numbers
come out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import networkx as nx
import numpy as np
import numpy.typing as npt
from torch.fx import Graph, GraphModule, Node

from .errors import CycleError, GraphError
from .merging import Merger

if TYPE_CHECKING:
    from .effects import EffectAnalysis

__all__ = ["Dependencies"]

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
CSR = tuple[Indices, Indices]


class Dependencies:
    """What waits for what in one graph, as arrays.

    Build it with :meth:`of` (an fx graph) or :meth:`from_edges` (plain numbers). It is a snapshot: it does not follow
    later edits of the graph.

    Attributes:
        nodes: The nodes in graph order.
        position: The number of each node.
        sources: Shape ``(edges,)``: where each edge starts, sorted by (source, target), without doubles.
        targets: Shape ``(edges,)``: where each edge ends.
        out_csr: ``(indptr, indices)``: the successors of node i are ``indices[indptr[i]:indptr[i + 1]]``.
        in_csr: The same for predecessors.
    """

    def __init__(
        self,
        nodes: Sequence[Any],
        sources: npt.ArrayLike,
        targets: npt.ArrayLike,
        effects: EffectAnalysis | None = None,
    ) -> None:
        self.nodes = list(nodes)
        self.position: dict[Any, int] = {node: number for number, node in enumerate(self.nodes)}
        self.effects = effects
        size = len(self.nodes)
        keys = np.unique(np.asarray(sources, dtype=np.int64) * size + np.asarray(targets, dtype=np.int64))
        self.sources: Indices = keys // max(size, 1)
        self.targets: Indices = keys % max(size, 1)
        self.out_csr: CSR = (_row_starts(self.sources, size), self.targets)
        by_target = np.argsort(self.targets, kind="stable")
        self.in_csr: CSR = (_row_starts(self.targets, size), self.sources[by_target])

    @classmethod
    def of(cls, graph: GraphModule | Graph, effects: EffectAnalysis | Literal[False] | None = None) -> Dependencies:
        """The dependencies of an fx graph.

        Args:
            graph: The graph, or the module that owns it.
            effects: Its effects, where they are known already; None analyses them; False leaves the order edges out.
        """
        root = graph
        graph = graph.graph if isinstance(graph, GraphModule) else graph
        if effects is None:
            from .effects import analyze_effects  # here: only callers that want order edges pay for it

            effects = analyze_effects(root)
        nodes = list(graph.nodes)
        position = {node: number for number, node in enumerate(nodes)}
        edges = [(source, node) for node in nodes for source in node.all_input_nodes]
        if effects:
            edges.extend(effects.order_edges)
        try:
            sources = [position[source] for source, _ in edges]
            targets = [position[target] for _, target in edges]
        except KeyError as error:
            raise _foreign(error.args[0], edges) from None
        return cls(nodes, sources, targets, effects or None)

    @classmethod
    def from_edges(
        cls,
        num_nodes: int,
        sources: npt.ArrayLike,
        targets: npt.ArrayLike,
        nodes: Sequence[Any] | None = None,
    ) -> Dependencies:
        """Dependencies between ``num_nodes`` things of any kind; edge k goes from ``sources[k]`` to ``targets[k]``."""
        return cls(range(num_nodes) if nodes is None else nodes, sources, targets)

    def __len__(self) -> int:
        return len(self.nodes)

    def predecessors(self, index: int) -> Indices:
        """The nodes that ``index`` waits for, ascending."""
        starts, indices = self.in_csr
        return indices[starts[index] : starts[index + 1]]

    def successors(self, index: int) -> Indices:
        """The nodes that wait for ``index``, ascending."""
        starts, indices = self.out_csr
        return indices[starts[index] : starts[index + 1]]

    @cached_property
    def successor_lists(self) -> list[list[int]]:
        """The successors of each node as plain lists, for loops in Python."""
        return _rows(self.out_csr)

    @cached_property
    def predecessor_lists(self) -> list[list[int]]:
        """The predecessors of each node as plain lists."""
        return _rows(self.in_csr)

    @cached_property
    def topological(self) -> list[int]:
        """All nodes so that each stands after what it waits for; the graph's own order where that is legal."""
        if self.topological_violation() is None:
            return list(range(len(self)))
        return _heap_order(self.predecessor_lists, self.successor_lists, self)

    def topological_violation(self) -> tuple[int, int] | None:
        """The first edge whose target stands before its source, None if the graph order is legal."""
        wrong = np.flatnonzero(self.sources >= self.targets)
        return (int(self.sources[wrong[0]]), int(self.targets[wrong[0]])) if len(wrong) else None

    @cached_property
    def _levels(self) -> list[int]:
        depth = [0] * len(self)
        rows = self.predecessor_lists
        for node in self.topological:
            if row := rows[node]:
                depth[node] = max([depth[source] for source in row]) + 1
        return depth

    def levels(self) -> Indices:
        """For each node the number of edges on the longest path that ends in it."""
        return np.asarray(self._levels, dtype=np.int64)

    def descendants(self, indices: Iterable[int]) -> Mask:
        """Mask of all nodes that wait for one of ``indices``, directly or not, these included."""
        return self._reached(indices, self.successor_lists)

    def ancestors(self, indices: Iterable[int]) -> Mask:
        """Mask of all nodes that one of ``indices`` waits for, directly or not, these included."""
        return self._reached(indices, self.predecessor_lists)

    def _reached(self, indices: Iterable[int], rows: list[list[int]]) -> Mask:
        mask = np.zeros(len(self), dtype=np.bool_)
        found = dict.fromkeys(map(int, indices))
        queue = list(found)
        for node in queue:
            for other in rows[node]:
                if other not in found:
                    found[other] = None
                    queue.append(other)
        mask[queue] = True
        return mask

    def reaches(self, source: int, target: int) -> bool:
        """Tell whether ``target`` is ``source`` or waits for it, directly or not."""
        return self.find_path(source, target) is not None

    def find_path(self, source: int, target: int, avoid: Iterable[int] = ()) -> list[int] | None:
        """A shortest path, both ends included; None if there is none that keeps clear of ``avoid``."""
        if source == target:
            return [source]
        levels, rows = self._levels, self.successor_lists
        came_from: dict[int, int] = dict.fromkeys(avoid, -1)
        came_from[source] = source
        queue = [source]
        for node in queue:
            for other in rows[node]:
                if other == target:
                    return [*_walk_back(came_from, node), target]
                if other not in came_from and levels[other] < levels[target]:
                    came_from[other] = node
                    queue.append(other)
        return None

    def is_convex(self, indices: Iterable[int]) -> bool:
        """Tell whether no path leaves ``indices`` and comes back."""
        return self.convexity_violation(indices) is None

    def convexity_violation(self, indices: Iterable[int]) -> list[int] | None:
        """A path that leaves the set and comes back: its first and last node are in the set, the others are not."""
        inside = dict.fromkeys(map(int, indices))
        levels, rows = self._levels, self.successor_lists
        deepest = max((levels[node] for node in inside), default=0)
        came_from: dict[int, int] = {}
        queue: list[int] = list(inside)
        for node in queue:
            for other in rows[node]:
                if other in inside:
                    if node not in inside:
                        return [*_walk_back(came_from, node, inside), other]
                elif other not in came_from and levels[other] < deepest:
                    came_from[other] = node
                    queue.append(other)
        return None

    def merger(self) -> Merger:
        """A fresh :class:`~fxpasses.merging.Merger`: every node a group of its own."""
        return Merger(self.successor_lists, self.predecessor_lists, self.topological, self.describe)

    def quotient(self, labels: Sequence[int]) -> nx.DiGraph:
        """The graph of the groups: nodes with one label become one.

        Args:
            labels: One number per node; -1 leaves a node alone.

        Returns:
            Graph nodes are the labels, and ``~i`` (negative) for a node i left alone; ``members`` holds the numbers of
            the nodes, ``edges`` on an edge the pairs it stands for.
        """
        unit = [label if label >= 0 else ~number for number, label in enumerate(map(int, labels))]
        result: nx.DiGraph = nx.DiGraph()
        for number, key in enumerate(unit):
            if key not in result:
                result.add_node(key, members=[])
            result.nodes[key]["members"].append(number)
        for source, target in zip(self.sources.tolist(), self.targets.tolist(), strict=True):
            if unit[source] != unit[target]:
                if not result.has_edge(unit[source], unit[target]):
                    result.add_edge(unit[source], unit[target], edges=[])
                result.edges[unit[source], unit[target]]["edges"].append((source, target))
        return result

    def cycle(self, labels: Sequence[int]) -> list[int] | None:
        """Nodes on a way that leads from a group back to it through others; None if the groups make no cycle.

        Neighbours in the list are joined by an edge, or are members of one group.
        """
        groups = self.quotient(labels)
        try:
            found = nx.find_cycle(groups)
        except nx.NetworkXNoCycle:
            return None
        path: list[int] = []
        for source, target in found:
            for number in groups.edges[source, target]["edges"][0]:
                if not path or path[-1] != number:
                    path.append(number)
        return path

    def stable_order(self, extra: Iterable[tuple[int, int]] = (), labels: Sequence[int] | None = None) -> list[int]:
        """A topological order that moves only what must move.

        Args:
            extra: More (earlier, later) pairs to respect.
            labels: Groups (-1: alone) whose nodes must come out next to each other.

        Raises:
            CycleError: No such order exists; ``path`` says why.
        """
        more = [(int(a), int(b)) for a, b in extra]
        view = self
        if more:
            view = Dependencies(
                self.nodes,
                np.concatenate([self.sources, [a for a, _ in more]]),
                np.concatenate([self.targets, [b for _, b in more]]),
                self.effects,
            )
        order = _heap_order(view.predecessor_lists, view.successor_lists, view)
        if labels is None:
            return order
        if path := view.cycle(labels):
            raise CycleError(f"these groups wait for each other: {self.describe(path)}", path=path)
        groups = view.quotient(labels)
        rank = {number: place for place, number in enumerate(order)}
        first = {key: min(rank[number] for number in members) for key, members in groups.nodes(data="members")}
        units = nx.lexicographical_topological_sort(groups, key=first.__getitem__)
        return [number for key in units for number in sorted(groups.nodes[key]["members"], key=rank.__getitem__)]

    def describe(self, path: Sequence[int]) -> str:
        """A path as text, ``a -> b -> c``, with the reason where only the order matters."""
        if not len(path):
            return ""
        parts = [str(self.nodes[path[0]])]
        for source, target in pairwise(path):
            parts.append(self._arrow(source, target) + str(self.nodes[target]))
        return "".join(parts)

    def _arrow(self, source: int, target: int) -> str:
        if target not in self.successors(source):
            return ", together with "
        earlier, later = self.nodes[source], self.nodes[target]
        if self.effects is None or not isinstance(later, Node) or earlier in later.all_input_nodes:
            return " -> "
        return f" -> ({self.effects.why_ordered(earlier, later)}) "


def _row_starts(rows: Indices, size: int) -> Indices:
    starts = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=size), out=starts[1:])
    return starts


def _rows(csr: CSR) -> list[list[int]]:
    starts, flat = csr[0].tolist(), csr[1].tolist()
    return [flat[start:end] for start, end in pairwise(starts)]


def _walk_back(came_from: dict[int, int], node: int, stop: dict[int, None] | None = None) -> list[int]:
    path = [node]
    while came_from.get(path[-1], path[-1]) != path[-1] and (stop is None or path[-1] not in stop):
        path.append(came_from[path[-1]])
    return path[::-1]


def _foreign(node: Node, edges: list[tuple[Node, Node]]) -> GraphError:
    user = next((target for source, target in edges if node in (source, target)), None)
    return GraphError(
        f"node '{node}' is used by '{user}' but is not in this graph; it was erased or belongs to another one",
        node=node,
    )


def _heap_order(predecessors: list[list[int]], successors: list[list[int]], view: Dependencies) -> list[int]:
    waiting = [len(row) for row in predecessors]
    ready = [node for node, count in enumerate(waiting) if count == 0]
    order: list[int] = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for successor in successors[node]:
            waiting[successor] -= 1
            if waiting[successor] == 0:
                heapq.heappush(ready, successor)
    if len(order) < len(predecessors):
        path = _cycle_among(predecessors, waiting)
        raise CycleError(f"these nodes wait for each other: {view.describe(path)}", path=path)
    return order


def _cycle_among(predecessors: list[list[int]], waiting: list[int]) -> list[int]:
    """Walk backwards through nodes that never became ready until one comes twice."""
    node = next(number for number, count in enumerate(waiting) if count)
    seen: dict[int, int] = {}
    walk: list[int] = []
    while node not in seen:
        seen[node] = len(walk)
        walk.append(node)
        node = next(source for source in predecessors[node] if waiting[source])
    return [node, *walk[: seen[node] : -1], node]
