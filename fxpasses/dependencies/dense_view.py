"""Nodes as numbers, edges as rows of numbers, and the questions about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import networkx as nx
import numpy as np
import numpy.typing as npt
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from fxpasses.dependencies.merging import Merger
from fxpasses.dependencies.ordering import find_cycle, first_ready_order, repaired_order
from fxpasses.errors import CycleError, GraphError

if TYPE_CHECKING:
    from fxpasses.effects import EffectAnalysis

__all__ = [
    "Dependencies",
]

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
CSR = tuple[Indices, Indices]

_WIDE = 64
_LONGEST_TEXT = 16


class Dependencies:
    """What waits for what in one graph, as arrays.

    Build it with :meth:`of` (an fx graph) or :meth:`from_edges` (plain numbers). It is a snapshot: it does not follow
    later edits of the graph. Building is O(m log m) in numpy; each question says what it costs. Nothing recurses.

    Attributes:
        nodes: The nodes in graph order.
        position: The number of each node.
        effects: Where the order edges are from; None if there are none.
        sources: Shape ``(edges,)``: where each edge starts, sorted by (source, target), without doubles.
        targets: Shape ``(edges,)``: where each edge ends.
        out_csr: ``(indptr, indices)``: the successors of node i are ``indices[indptr[i]:indptr[i + 1]]``.
        in_csr: The same for predecessors.

    >>> diamond = Dependencies.from_edges(4, [0, 0, 1, 2], [1, 2, 3, 3], nodes=["a", "b", "c", "d"])
    >>> diamond.is_convex([0, 1, 3]), diamond.describe(diamond.convexity_violation([0, 1, 3]))
    (False, 'a -> c -> d')
    >>> diamond.levels().tolist()
    [0, 1, 1, 2]
    """

    def __init__(
        self,
        nodes: Sequence[Any],  # fx nodes, or whatever hashables the caller's edges are about
        sources: npt.ArrayLike,
        targets: npt.ArrayLike,
        effects: EffectAnalysis | None = None,
    ) -> None:
        self.nodes = list(nodes)
        self.effects = effects
        size = len(self.nodes)
        keys = np.unique(np.asarray(sources, dtype=np.int64) * size + np.asarray(targets, dtype=np.int64))
        self.sources: Indices
        self.targets: Indices
        self.sources, self.targets = np.divmod(keys, max(size, 1))
        self.out_csr: CSR = (_row_starts(self.sources, size), self.targets)
        by_target = np.argsort(self.targets, kind="stable")
        self.in_csr: CSR = (_row_starts(self.targets, size), self.sources[by_target])

    @classmethod
    def of(
        cls,
        graph: GraphModule | Graph | ExportedProgram,
        effects: EffectAnalysis | Literal[False] | None = None,
    ) -> Dependencies:
        """The dependencies of an fx graph, in O(n + m).

        Args:
            graph: The graph, or the module or program that owns it. A program's signature tells more: which outputs are
                copied back into inputs and buffers.
            effects: Its effects, where they are known already; None analyses them; False leaves the order edges out.

        Raises:
            GraphError: A node uses one that is not in the graph.
        """
        program = graph if isinstance(graph, ExportedProgram) else None
        root = graph.graph_module if isinstance(graph, ExportedProgram) else graph
        if effects is None:
            from fxpasses.effects.analysis import analyze_effects  # here: only callers that want order edges pay for it

            effects = analyze_effects(root, program=program)
        nodes = list(root.graph.nodes if isinstance(root, GraphModule) else root.nodes)
        position = {node: number for number, node in enumerate(nodes)}
        order_edges = effects.order_edges if effects else []
        used: list[Node] = []
        ends = [0]
        for node in nodes:
            used += node.all_input_nodes  # a list that dies here: kept ones would set off the garbage collector
            ends.append(len(used))
        try:
            sources = [position[source] for source in used]
            sources += [position[earlier] for earlier, _ in order_edges]
            later = [position[target] for _, target in order_edges]
        except KeyError as error:
            raise _foreign(error.args[0], nodes) from None
        targets = np.repeat(np.arange(len(nodes)), np.diff(ends))
        return cls(nodes, sources, np.concatenate([targets, np.asarray(later, dtype=np.int64)]), effects or None)

    @classmethod
    def from_edges(
        cls,
        num_nodes: int,
        sources: npt.ArrayLike,
        targets: npt.ArrayLike,
        nodes: Sequence[Any] | None = None,  # any hashables
    ) -> Dependencies:
        """Dependencies between ``num_nodes`` things of any kind; edge k goes from ``sources[k]`` to ``targets[k]``.

        Raises:
            GraphError: The edges do not fit each other or the number of nodes.
        """
        starts, ends = np.asarray(sources, dtype=np.int64).ravel(), np.asarray(targets, dtype=np.int64).ravel()
        if len(starts) != len(ends):
            raise GraphError(f"edges need as many targets as sources; there are {len(starts)} and {len(ends)}")
        if len(wrong := (both := np.concatenate([starts, ends]))[(both < 0) | (both >= num_nodes)]):
            raise GraphError(f"an edge names node {wrong[0]}; there are {num_nodes} nodes, numbered from 0")
        if nodes is not None and len(nodes) != num_nodes:
            raise GraphError(f"{num_nodes} nodes were announced, and {len(nodes)} given")
        return cls(range(num_nodes) if nodes is None else nodes, starts, ends)

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        return f"<Dependencies: {len(self)} nodes, {len(self.sources)} edges>"

    @cached_property
    def position(self) -> dict[Any, int]:
        """The number of each node."""
        return {node: number for number, node in enumerate(self.nodes)}

    # neighbours

    def predecessors(self, index: int) -> Indices:
        """The nodes that ``index`` waits for, ascending."""
        starts, indices = self.in_csr
        return indices[starts[index] : starts[index + 1]]

    def successors(self, index: int) -> Indices:
        """The nodes that wait for ``index``, ascending."""
        starts, indices = self.out_csr
        return indices[starts[index] : starts[index + 1]]

    def has_edge(self, source: int, target: int) -> bool:
        """Tell whether ``target`` waits for ``source`` directly."""
        row = self.successors(source)
        place = int(np.searchsorted(row, target))
        return place < len(row) and int(row[place]) == target

    @cached_property
    def successor_lists(self) -> list[list[int]]:
        """The successors of each node as plain lists, for loops in Python; not to be changed."""
        return _rows(self.out_csr)

    @cached_property
    def predecessor_lists(self) -> list[list[int]]:
        """The predecessors of each node as plain lists; not to be changed."""
        return _rows(self.in_csr)

    # orders

    def topological_violation(self) -> tuple[int, int] | None:
        """The first edge (source, target) whose target stands before its source; None if the graph order is legal."""
        wrong = np.flatnonzero(self.sources >= self.targets)
        return (int(self.sources[wrong[0]]), int(self.targets[wrong[0]])) if len(wrong) else None

    @cached_property
    def topological(self) -> list[int]:
        """All nodes so that each stands behind what it waits for; the graph's own order where that is legal.

        Raises:
            CycleError: There is no such order.
        """
        order = range(len(self))
        if self.topological_violation() is None:
            return list(order)
        return first_ready_order(order, self.successor_lists, self.predecessor_lists, self._cycle_error)

    @cached_property
    def _levels(self) -> list[int]:
        depth = [0] * len(self)
        rows = self.predecessor_lists
        for node in self.topological:
            if row := rows[node]:
                depth[node] = max([depth[source] for source in row]) + 1
        return depth

    def levels(self) -> Indices:
        """For each node the number of edges on the longest path that ends in it. O(n + m), once."""
        return np.asarray(self._levels, dtype=np.int64)

    # reachability

    def descendants(self, indices: Iterable[int]) -> Mask:
        """Mask of all nodes that wait for one of ``indices``, directly or not, these included. O(what it reaches)."""
        return self._reached(self._checked(indices), self.out_csr, self.successor_lists)

    def ancestors(self, indices: Iterable[int]) -> Mask:
        """Mask of all nodes that one of ``indices`` waits for, directly or not, these included."""
        return self._reached(self._checked(indices), self.in_csr, self.predecessor_lists)

    def _reached(self, start: Sequence[int], csr: CSR, rows: list[list[int]]) -> Mask:
        """Breadth first; a wide front goes through numpy, a narrow one through a plain loop."""
        seen = bytearray(len(self))
        mask = np.frombuffer(seen, dtype=np.bool_)  # one memory, two ways to write it
        front = list(dict.fromkeys(start))
        mask[front] = True
        while front:
            if len(front) >= _WIDE:
                following = _gather(csr, np.asarray(front))
                front = np.unique(following[~mask[following]]).tolist()
                mask[front] = True
                continue
            narrow, front = front, []
            for node in narrow:
                for other in rows[node]:
                    if not seen[other]:
                        seen[other] = 1
                        front.append(other)
        return mask

    @cached_property
    def _index(self) -> Merger:
        return self.merger()

    def reaches(self, source: int, target: int) -> bool:
        """Tell whether ``target`` is ``source`` or waits for it, directly or not.

        Answered by the index of :class:`~fxpasses.dependencies.merging.Merger`: cheap also when asked often.
        """
        source, target = self._checked((source, target))
        if source == target:
            return True
        if self._levels[source] >= self._levels[target]:
            return False
        return self.has_edge(source, target) or not self._index.may_merge(source, target)

    def find_path(self, source: int, target: int, avoid: Iterable[int] = ()) -> list[int] | None:
        """A shortest path, both ends included; None if there is none whose inner nodes avoid ``avoid``. O(n + m)."""
        shut = dict.fromkeys(self._checked(avoid), -1)
        shut.pop(target, None)
        if not self.reaches(source, target):
            return None
        levels, rows = self._levels, self.successor_lists
        came_from: dict[int, int] = {**shut, source: source}
        queue = [source]
        for node in queue:
            if node == target:
                return _walk_back(came_from, node)
            for other in rows[node]:
                if other not in came_from and (other == target or levels[other] < levels[target]):
                    came_from[other] = node
                    queue.append(other)
        return None

    # convex sets

    def is_convex(self, indices: Iterable[int]) -> bool:
        """Tell whether no path leaves ``indices`` and comes back. O(nodes and edges between the first and the last)."""
        return self.convexity_violation(indices) is None

    def convexity_violation(self, indices: Iterable[int]) -> list[int] | None:
        """A path that leaves the set and comes back: its first and last node are in the set, the others are not."""
        inside = dict.fromkeys(self._checked(indices))
        levels, rows = self._levels, self.successor_lists
        deepest = max((levels[node] for node in inside), default=0)
        came_from = {node: node for node in inside}
        queue = list(inside)
        for node in queue:
            for other in rows[node]:
                if other in inside:
                    if node not in inside:
                        return [*_walk_back(came_from, node), other]
                elif other not in came_from and levels[other] < deepest:
                    came_from[other] = node
                    queue.append(other)
        return None

    def convex_closure(self, indices: Iterable[int]) -> list[int]:
        """The smallest convex set that holds ``indices``, ascending."""
        start = self._checked(indices)
        found: list[int] = np.flatnonzero(self.descendants(start) & self.ancestors(start)).tolist()
        return found

    def convex_pieces(self, indices: Iterable[int]) -> list[list[int]]:
        """Cut a set into the fewest pieces that are convex and, taken in this order, never wait for a later one.

        A node goes into piece k when the worst path to it has left the set and come back k times: a path that does so
        needs k + 1 pieces, so no cutting has fewer. O(n + m).
        """
        inside = set(self._checked(indices))
        returns = [0] * len(self)
        rows = self.predecessor_lists
        pieces: list[list[int]] = []
        for node in self.topological:
            stays = node in inside
            for source in rows[node]:
                count = returns[source] + (not stays and source in inside)
                if count > returns[node]:
                    returns[node] = count
            if stays:
                pieces.extend([] for _ in range(returns[node] + 1 - len(pieces)))
                pieces[returns[node]].append(node)
        return pieces

    # groups

    def merger(self) -> Merger:
        """A fresh :class:`~fxpasses.dependencies.merging.Merger`: every node a group of its own."""
        return Merger(self.successor_lists, self.predecessor_lists, self.topological, self._merge_error)

    def quotient(self, labels: Sequence[int]) -> nx.DiGraph[int]:
        """The graph of the groups: nodes with one label become one.

        Args:
            labels: One number per node; -1 leaves a node alone.

        Returns:
            Its nodes are the labels, and ``~i`` (negative) for a node i left alone; ``members`` on a node holds the
            numbers of the nodes, ``edges`` on an edge the pairs it stands for.
        """
        units = self._units(labels)
        result: nx.DiGraph[int] = nx.DiGraph()
        result.add_nodes_from(
            (key, {"members": members}) for key, members in zip(units.nodes, units.members, strict=True)
        )
        keys = [units.nodes[unit] for unit in units.unit_of]
        for source, target in zip(self.sources.tolist(), self.targets.tolist(), strict=True):
            if (start := keys[source]) != (end := keys[target]):
                if not result.has_edge(start, end):
                    result.add_edge(start, end, edges=[])
                result[start][end]["edges"].append((source, target))
        return result

    def cycle(self, labels: Sequence[int]) -> list[int] | None:
        """Nodes on a way that leads from a group through others back to it; None if the groups make no cycle. O(n + m).

        Neighbours in the list are joined by an edge, or are members of one group.
        """
        units = self._units(labels)
        found = find_cycle(units.successor_lists, units.predecessor_lists)
        return None if found is None else self._node_path(units, found)

    def _node_path(self, units: _Units, found: Sequence[int]) -> list[int]:
        size = len(units)
        keys = units.unit_of[self.sources] * size + units.unit_of[self.targets]
        by_key = np.argsort(keys, kind="stable")
        path: list[int] = []
        for first, second in pairwise(found):
            edge = by_key[np.searchsorted(keys, first * size + second, sorter=by_key)]
            for node in (int(self.sources[edge]), int(self.targets[edge])):
                if path[-1:] != [node]:
                    path.append(node)
        return path

    def _units(self, labels: Sequence[int]) -> _Units:
        if len(labels) != len(self):
            raise GraphError(f"labels need one number per node; there are {len(labels)} for {len(self)} nodes")
        return _Units(self, np.asarray(labels, dtype=np.int64))

    def stable_order(self, extra: Iterable[tuple[int, int]] = (), labels: Sequence[int] | None = None) -> list[int]:
        """A topological order that moves only what must; see :func:`fxpasses.dependencies.ordering.repaired_order`.

        Placeholders keep their order among each other, and the output node stays last.

        Args:
            extra: More (earlier, later) pairs to respect.
            labels: Groups (-1: alone) whose nodes must come out next to each other. A group gathers around its middle
                member, in its own order.

        Raises:
            CycleError: No such order exists; ``path`` says why.
        """
        view = self._with_edges([*self._fixed_pairs(), *((int(a), int(b)) for a, b in extra)])
        order = list(range(len(self)))
        if view.topological_violation() is not None:
            ones = [1] * len(self)
            order = repaired_order(order, view.successor_lists, view.predecessor_lists, ones, view._cycle_error)
        return order if labels is None else view._gathered(order, labels)

    def _gathered(self, order: list[int], labels: Sequence[int]) -> list[int]:
        """Bring groups together in a topological order, moving as few nodes as may be."""
        units = self._units(labels)
        if found := find_cycle(units.successor_lists, units.predecessor_lists):
            raise self._group_error(self._node_path(units, found))
        members: list[list[int]] = [[] for _ in units.nodes]
        middle = [0] * len(units)
        for node in order:
            members[units.unit_of[node]].append(node)
        place = {node: number for number, node in enumerate(order)}
        for unit, inside in enumerate(members):
            middle[unit] = place[inside[(len(inside) - 1) // 2]]
        gathered = repaired_order(
            sorted(range(len(units)), key=middle.__getitem__),
            units.successor_lists,
            units.predecessor_lists,
            [len(inside) for inside in members],
            units._cycle_error,
        )
        return [node for unit in gathered for node in members[unit]]

    def _fixed_pairs(self) -> Iterator[tuple[int, int]]:
        """What an fx graph wants beside its edges: placeholders in order, nothing behind the output."""
        if self.nodes and not isinstance(self.nodes[-1], Node):
            return
        ops = [node.op for node in self.nodes]
        yield from pairwise(number for number, op in enumerate(ops) if op == "placeholder")
        if "output" in ops:
            output = ops.index("output")
            yield from ((number, output) for number in range(output + 1, len(ops)))

    def _with_edges(self, pairs: Sequence[tuple[int, int]]) -> Dependencies:
        if not pairs:
            return self
        sources, targets = (self._checked(side) for side in zip(*pairs, strict=True))
        everything = np.concatenate([self.sources, sources]), np.concatenate([self.targets, targets])
        return Dependencies(self.nodes, *everything, self.effects)

    # words

    def describe(self, path: Sequence[int]) -> str:
        """A path as text: ``a -> b -> c``, with the reason behind a node that only an effect puts there."""
        words = [self._step(*pair) for pair in pairwise(path)]
        if len(words) > _LONGEST_TEXT:
            half = _LONGEST_TEXT // 2
            words[half:-half] = [f" -> ... {len(words) - 2 * half} more ..."]
        return "".join([*(str(self.nodes[node]) for node in path[:1]), *words])

    def _step(self, source: int, target: int) -> str:
        earlier, later = self.nodes[source], self.nodes[target]
        if not self.has_edge(source, target):
            return f", in one group with {later}"
        if self.effects is None or earlier in later.all_input_nodes:
            return f" -> {later}"
        reason = self.effects.why_ordered(earlier, later)
        return f" -> {later} ({reason})" if reason else f" -> {later}"

    def _error(self, sentence: str, path: Sequence[int]) -> CycleError:
        return CycleError(f"{sentence}: {self.describe(path)}", path=[self.nodes[node] for node in path])

    def _cycle_error(self, path: list[int]) -> CycleError:
        return self._error("no order is legal, these nodes would wait for each other", path)

    def _group_error(self, path: list[int]) -> CycleError:
        return self._error("these groups would wait for each other; take a node of this path out of its group", path)

    def _merge_error(self, path: list[int]) -> CycleError:
        return self._error("these groups cannot become one, a path leads from one to the other through a third", path)

    def _checked(self, indices: Iterable[int]) -> list[int]:
        if isinstance(indices, np.ndarray) and indices.dtype == np.bool_:
            indices = np.flatnonzero(indices)
        numbers = [int(index) for index in indices]
        if numbers and not (min(numbers) >= 0 and max(numbers) < len(self)):
            wrong = next(number for number in numbers if not 0 <= number < len(self))
            raise GraphError(f"there is no node {wrong}; this graph has {len(self)} nodes, numbered from 0")
        return numbers


class _Units(Dependencies):
    """The groups of a graph as a graph of its own: numbered by first member, named by label or ``~node``."""

    def __init__(self, base: Dependencies, labels: Indices) -> None:
        keys = np.where(labels >= 0, labels, ~np.arange(len(base)))
        names, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
        by_first = np.argsort(firsts, kind="stable")
        rank = np.empty_like(by_first)
        rank[by_first] = np.arange(len(by_first))
        self.unit_of: Indices = rank[inverse.ravel()]
        sources, targets = self.unit_of[base.sources], self.unit_of[base.targets]
        between = sources != targets
        super().__init__(names[by_first].tolist(), sources[between], targets[between])

    @cached_property
    def members(self) -> list[list[int]]:
        """The nodes of each unit, ascending."""
        rows: list[list[int]] = [[] for _ in self.nodes]
        for node, unit in enumerate(self.unit_of.tolist()):
            rows[unit].append(node)
        return rows


def _row_starts(rows: Indices, size: int) -> Indices:
    starts = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=size), out=starts[1:])
    return starts


def _rows(csr: CSR) -> list[list[int]]:
    starts, flat = csr[0].tolist(), csr[1].tolist()
    return [flat[start:end] for start, end in pairwise(starts)]


def _gather(csr: CSR, front: Indices) -> Indices:
    """The rows of ``front`` one behind the other."""
    starts, indices = csr
    lengths = starts[front + 1] - starts[front]
    offsets = np.repeat(starts[front] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    return indices[offsets + np.arange(len(offsets))]


def _walk_back(came_from: dict[int, int], node: int) -> list[int]:
    path = [node]
    while came_from[path[-1]] != path[-1]:
        path.append(came_from[path[-1]])
    return path[::-1]


def _foreign(node: Node, nodes: Sequence[Node]) -> GraphError:
    user = next((user for user in nodes if node in user.all_input_nodes), None)
    where = f"is used by '{user}'" if user is not None else "has an order edge"
    return GraphError(
        f"node '{node}' {where} but is not in this graph; it was erased, or belongs to another graph", node=node
    )
