"""Which node goes into which partition, and why: what every partitioner answers and the splitter takes.

An :class:`Assignment` is a value. It is convex by construction: no path leaves a partition and comes back, and no two
partitions wait for each other, over data edges and over the order edges of :mod:`fxpasses.effects`. Its edits give
a new Assignment that keeps this, or raise a :class:`~fxpasses.errors.CycleError` whose path shows what would go wrong.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs
from torch.fx import Graph, GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.errors import CycleError, PartitionError, also_as
from fxpasses.outlining.regions import dependencies_of_parts

__all__ = ["Assignment", "Grouping"]

Grouping = Mapping[Node, Hashable] | Iterable[Iterable[Node]]
"""What a caller may write: ``{node: partition}``, or one iterable of nodes per partition (named 0, 1, 2, ...)."""

_NEVER_ASSIGNED = ("placeholder", "output")
_NO_REASON = "no partitioner proposed it"


def _check_node(node: Any) -> None:
    if not isinstance(node, Node):
        raise also_as(PartitionError, TypeError())(
            f"{node!r} is no node but of type {type(node).__name__}; take nodes from the graph, such as by "
            "graph.find_nodes, or from nodes(partition)"
        )


def _frozen_copy(given: Mapping[Node, Hashable]) -> Mapping[Node, Hashable]:
    return MappingProxyType(dict(given))


def _frozen_reasons(given: Mapping[Node, str]) -> Mapping[Node, str]:
    return MappingProxyType(dict(given))


def _frozen_replicas(given: Mapping[Hashable, Iterable[Node]]) -> Mapping[Hashable, tuple[Node, ...]]:
    return MappingProxyType({name: tuple(nodes) for name, nodes in given.items() if nodes})


def _in_order(given: Iterable[Hashable]) -> tuple[Hashable, ...]:
    return tuple(given)


@attrs.frozen(repr=False)
class Assignment:
    """Partitions of a graph, in execution order.

    Build one with :meth:`of`, which checks it. Nodes that are in no partition stay in the top-level graph.

    Args:
        graph: The graph the nodes belong to.
        partition_of: The partition of each assigned node. Never holds placeholders or the output; ``get_attr`` nodes
            may be left out, since a constant lives in the part that uses it.
        order: All partitions, in an order in which they can run.
        reasons: Why a node is in no partition, for those nodes where somebody knows.
        dependencies: The dense view of the graph; computed when first asked for.
        replicas: Nodes that a partition computes again, though they are in another one, instead of getting their
            values; ``fxpasses.passes.split`` writes them into the parts.
    """

    graph: Graph
    partition_of: Mapping[Node, Hashable] = attrs.field(converter=_frozen_copy)
    order: tuple[Hashable, ...] = attrs.field(converter=_in_order)
    reasons: Mapping[Node, str] = attrs.field(factory=dict, eq=False, converter=_frozen_reasons)
    _dependencies: Dependencies | None = attrs.field(default=None, eq=False, kw_only=True)
    replicas: Mapping[Hashable, tuple[Node, ...]] = attrs.field(factory=dict, kw_only=True, converter=_frozen_replicas)
    _partitions: Mapping[Hashable, list[Node]] | None = attrs.field(default=None, eq=False, init=False)

    @classmethod
    def of(
        cls,
        graph_module: GraphModule | Graph,
        grouping: Grouping,
        order: Iterable[Hashable] | None = None,
        *,
        reasons: Mapping[Node, str] | None = None,
        dependencies: Dependencies | None = None,
        replicas: Mapping[Hashable, Iterable[Node]] | None = None,
    ) -> Assignment:
        """Check a grouping of nodes and make it an Assignment.

        Args:
            graph_module: The graph, or the module that owns it.
            grouping: ``{node: partition}`` or ``[[node, ...], ...]``.
            order: The partitions in the order in which they shall run; by default the topological order that follows
                the graph most closely.
            reasons: Why nodes are outside.
            dependencies: The view of this graph, if the caller has one already.
            replicas: Nodes that a partition computes again, though they are in another one.

        Returns:
            The Assignment.

        Raises:
            PartitionError: Partitions overlap, are empty, or hold placeholders, outputs or foreign nodes; or ``order``
                is not an order of exactly these partitions; or a replica is of no other partition.
            CycleError: Partitions would wait for each other; ``path`` shows how.
        """
        graph = graph_module.graph if isinstance(graph_module, GraphModule) else graph_module
        partition_of = _partition_of(grouping)
        names = list(dict.fromkeys(order)) if order is not None else None
        _check_members(graph, partition_of)
        view = dependencies if dependencies is not None else dependencies_of_parts(graph_module)
        preferred = _preferred_order(view, partition_of) if names is None else _checked_names(names, partition_of)
        found = execution_order(view, partition_of, preferred)
        if names is not None and found != names:
            _refuse_order(names, found)
        again = replicas or {}
        _check_replicas(partition_of, again)
        return cls(graph, partition_of, tuple(found), reasons or {}, dependencies=view, replicas=again)

    @classmethod
    def if_acyclic(
        cls, graph_module: GraphModule | Graph, grouping: Grouping, *, dependencies: Dependencies | None = None
    ) -> Assignment | None:
        """Check a grouping as :meth:`of` does, for searches: to explain a cycle takes longer than to see it.

        Returns:
            The Assignment in the order that follows the graph; None where partitions would wait for each other.

        Raises:
            PartitionError: As by :meth:`of`.
        """
        graph = graph_module.graph if isinstance(graph_module, GraphModule) else graph_module
        partition_of = _partition_of(grouping)
        _check_members(graph, partition_of)
        view = dependencies if dependencies is not None else dependencies_of_parts(graph_module)
        order = _order_if_any(view, partition_of, _preferred_order(view, partition_of))
        return None if order is None else cls(graph, partition_of, tuple(order), dependencies=view)

    @property
    def dependencies(self) -> Dependencies:
        """The dense view of the graph, analysed once."""
        if self._dependencies is None:
            object.__setattr__(self, "_dependencies", dependencies_of_parts(self.graph))
        assert self._dependencies is not None
        return self._dependencies

    @property
    def partitions(self) -> Mapping[Hashable, list[Node]]:
        """The nodes of each partition in graph order; the partitions in execution order."""
        if self._partitions is None:
            collected: dict[Hashable, list[Node]] = {name: [] for name in self.order}
            for node, name in self.partition_of.items():
                collected[name].append(node)
            for nodes in collected.values():
                nodes.sort()  # nodes compare by their place in the graph, also once they are erased
            object.__setattr__(self, "_partitions", MappingProxyType(collected))
        assert self._partitions is not None
        return self._partitions

    @property
    def outside(self) -> list[Node]:
        """The nodes that stay in the top-level graph, in graph order; placeholders and the output are not listed."""
        return [node for node in self.graph.nodes if node.op not in _NEVER_ASSIGNED and node not in self.partition_of]

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.order)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name!r}: {len(nodes)} nodes" for name, nodes in list(self.partitions.items())[:8])
        more = f", ... {len(self.order) - 8} more" if len(self.order) > 8 else ""
        return f"Assignment({{{sizes}{more}}})"

    def nodes(self, partition: Hashable) -> list[Node]:
        """The nodes of one partition, in graph order.

        Raises:
            PartitionError: There is no such partition.
        """
        self._check_known(partition)
        return list(self.partitions[partition])

    def inputs(self, partition: Hashable, *, constants: bool = False) -> list[Node]:
        """The values that one partition takes from outside, in graph order.

        Args:
            partition: Its name.
            constants: Also list ``get_attr`` nodes that are in no partition (they move to where they are used).
        """
        members = set(self.nodes(partition))
        taken = dict.fromkeys(used for node in self.partitions[partition] for used in node.all_input_nodes)
        crossing = [node for node in taken if node not in members and (constants or not self._is_loose_constant(node))]
        return sorted(crossing, key=self.dependencies.position.__getitem__)

    def outputs(self, partition: Hashable) -> list[Node]:
        """The nodes of one partition that are used outside of it, in graph order."""
        members = set(self.nodes(partition))
        return [node for node in self.partitions[partition] if any(user not in members for user in node.users)]

    def why(self, node: Node) -> str:
        """Say in one sentence why a node is where it is.

        Raises:
            PartitionError: It is no node.
        """
        _check_node(node)
        if node in self.partition_of:
            again = ", ".join(repr(name) for name, nodes in self.replicas.items() if node in nodes)
            home = f"in partition {self.partition_of[node]!r}"
            return f"{home}, and computed again in {again} instead of being sent there" if again else home
        if node.graph is not self.graph:
            return "belongs to another graph"
        if node.op in _NEVER_ASSIGNED:
            return f"{node.op} nodes are the border of the graph and never partitioned"
        return self.reasons.get(node, _NO_REASON)

    def explain(self, a: Node, b: Node) -> str:
        """Say in one sentence why two nodes are, or are not, in one partition.

        Raises:
            PartitionError: One of them is no node.
        """
        _check_node(a)
        _check_node(b)
        mine, other = self.partition_of.get(a), self.partition_of.get(b)
        for node, home in ((a, mine), (b, other)):
            if home is None and node not in self.partition_of:
                return f"{node.name} is outside: {self.why(node)}"
        if mine == other:
            return f"both are in partition {mine!r}"
        merged = {node: (mine if home == other else home) for node, home in self.partition_of.items()}
        cycle = self.dependencies.cycle(self._labels(merged))
        if cycle is None:
            return f"partitions {mine!r} and {other!r} could be merged without a cycle"
        return f"merging {mine!r} and {other!r} would close a cycle: {self.dependencies.describe(cycle)}"

    def drop(self, nodes: Node | Iterable[Node], *, reason: str = "dropped by hand", pieces: bool = True) -> Assignment:
        """Take nodes out of their partitions.

        Args:
            nodes: One node or several.
            reason: What :meth:`why` says about them afterwards.
            pieces: If what remains is no longer convex (the dropped node bridged it), cut the partition into convex
                pieces. False makes that an error.

        Raises:
            PartitionError: A node is in no partition, or is no node.
            CycleError: ``pieces`` is False and a partition would wait for itself.
        """
        dropped = list(nodes) if isinstance(nodes, Iterable) else [nodes]
        kept = dict(self.partition_of)
        touched: dict[Hashable, None] = {}
        for node in dropped:
            self._check_assigned(node)
            touched[self.partition_of[node]] = None
            kept.pop(node, None)
        reasons = {**self.reasons, **dict.fromkeys(dropped, reason)}
        if pieces and not self._is_acyclic(kept):
            kept = self._cut_into_pieces(kept, touched)
        return self._with(kept, reasons)

    def merge(self, a: Hashable, b: Hashable, *others: Hashable) -> Assignment:
        """Make several partitions one, under the name of the first.

        Raises:
            PartitionError: A partition does not exist.
            CycleError: Nodes between them would have to run after and before the merged partition.
        """
        for name in (a, b, *others):
            self._check_known(name)
        merged = {b, *others}
        return self._with({node: (a if home in merged else home) for node, home in self.partition_of.items()})

    def move(self, node: Node, to: Hashable) -> Assignment:
        """Put a node (from a partition or from outside) into a partition, which may be a new one.

        Raises:
            PartitionError: The node is a placeholder, an output or another graph's.
            CycleError: The partitions would wait for each other.
        """
        moved = {**self.partition_of, node: to}
        reasons = {other: reason for other, reason in self.reasons.items() if other is not node}
        return self._with(moved, reasons)

    def split(self, partition: Hashable, into: Sequence[Sequence[Node]] | None = None) -> Assignment:
        """Cut one partition into several.

        Args:
            partition: Its name, which the first piece keeps; the others get new ones.
            into: The pieces; nodes that are in no piece form the first one. By default the pieces are those that no
                edge connects.

        Raises:
            PartitionError: There is no such partition, or a piece holds a node of another one.
            CycleError: The pieces would wait for each other.
        """
        members = self.nodes(partition)
        pieces = self._components(members) if into is None else self._given_pieces(partition, members, into)
        changed = dict(self.partition_of)
        for piece, name in zip(pieces[1:], self._new_names(partition, len(pieces) - 1), strict=True):
            changed.update(dict.fromkeys(piece, name))
        return self._with(changed)

    def rename(self, names: Mapping[Hashable, Hashable]) -> Assignment:
        """Give partitions other names; two that would get the same one are an error.

        Raises:
            PartitionError: A partition does not exist, or two would share a name.
        """
        for name in names:
            self._check_known(name)
        order = [names.get(name, name) for name in self.order]
        if len(set(order)) < len(order):
            raise PartitionError(f"renaming gives two partitions the same name: {order!r}; use merge() to join them")
        partition_of = {node: names.get(home, home) for node, home in self.partition_of.items()}
        again = {names.get(name, name): nodes for name, nodes in self.replicas.items()}
        view = self._dependencies
        return Assignment(self.graph, partition_of, tuple(order), self.reasons, dependencies=view, replicas=again)

    def _with(self, partition_of: Mapping[Node, Hashable], reasons: Mapping[Node, str] | None = None) -> Assignment:
        """The same graph with another grouping; partitions keep their old order where they can."""
        _check_members(self.graph, partition_of)
        used = dict.fromkeys(partition_of.values())
        known = [name for name in self.order if name in used]
        there = set(known)
        fresh = [name for name in used if name not in there]
        preferred = _interleaved(self.dependencies, partition_of, known, fresh)
        order = execution_order(self.dependencies, partition_of, preferred)
        kept_reasons = self.reasons if reasons is None else reasons
        again = {
            name: [node for node in nodes if partition_of.get(node, name) != name]
            for name, nodes in self.replicas.items()
            if name in used
        }
        view = self._dependencies
        return Assignment(self.graph, partition_of, tuple(order), kept_reasons, dependencies=view, replicas=again)

    def _labels(self, partition_of: Mapping[Node, Hashable]) -> list[int]:
        return _labels(self.dependencies, partition_of, list(dict.fromkeys(partition_of.values())))

    def _is_acyclic(self, partition_of: Mapping[Node, Hashable]) -> bool:
        labels = self._labels(partition_of)
        return group_order(self.dependencies, labels, max(labels, default=-1) + 1) is not None

    def _cut_into_pieces(self, kept: dict[Node, Hashable], touched: Iterable[Hashable]) -> dict[Node, Hashable]:
        """Cut the touched partitions by how often a path to a node leaves its partition.

        A path that leaves a partition and re-enters it raises the level by one, so within one level no path can do
        so, and between levels all paths point upwards. Needs one sweep over nodes and edges for each partition cut.
        """
        for name in touched:
            members = [node for node, home in kept.items() if home == name]
            levels = _exit_levels(self.dependencies, members)
            distinct = sorted(set(levels.values()))
            names = dict(zip(distinct, [name, *self._new_names(name, len(distinct) - 1, kept)], strict=True))
            kept.update({node: names[levels[node]] for node in members})
        return kept

    def _components(self, members: Sequence[Node]) -> list[list[Node]]:
        """The pieces that neither data nor order edges connect, each in graph order."""
        inside = {self.dependencies.position[node] for node in members}
        leader: dict[int, int] = {}

        def find(index: int) -> int:
            root = index
            while leader.get(root, root) != root:
                root = leader[root]
            while leader.get(index, index) != root:
                leader[index], index = root, leader[index]
            return root

        for index in sorted(inside):
            for other in self.dependencies.predecessors(index):
                if int(other) in inside:
                    low, high = sorted((find(int(other)), find(index)))
                    leader[high] = low
        pieces: dict[int, list[Node]] = {}
        for index in sorted(inside):
            pieces.setdefault(find(index), []).append(self.dependencies.nodes[index])
        return list(pieces.values())

    def _given_pieces(
        self, partition: Hashable, members: Sequence[Node], into: Sequence[Sequence[Node]]
    ) -> list[list[Node]]:
        left = dict.fromkeys(members)
        pieces = [list(piece) for piece in into]
        for node in (node for piece in pieces for node in piece):
            if node not in left:
                raise PartitionError(
                    f"cannot split partition {partition!r}: {node.name} is {self.why(node)}, or named twice", node=node
                )
            del left[node]
        return [piece for piece in ([*left], *pieces) if piece]

    def _new_names(self, base: Hashable, count: int, taken: Mapping[Node, Hashable] | None = None) -> list[Hashable]:
        """Names that no partition has: the next numbers, or the base with a number behind it."""
        used: set[Hashable] = {*self.order, *(taken or {}).values()}
        names: list[Hashable] = []
        number = 0
        while len(names) < count:
            number += 1
            fresh: Hashable = f"{base}_{number}" if isinstance(base, str) else (base, number)
            if isinstance(base, int):
                fresh = max((name for name in used if isinstance(name, int)), default=-1) + 1
            if fresh not in used:
                used.add(fresh)
                names.append(fresh)
        return names

    def _is_loose_constant(self, node: Node) -> bool:
        return node.op == "get_attr" and node not in self.partition_of

    def _check_known(self, partition: Hashable) -> None:
        if partition not in self.partitions:
            known = ", ".join(repr(name) for name in self.order[:10]) or "none"
            raise PartitionError(f"there is no partition {partition!r}; the partitions are: {known}")

    def _check_assigned(self, node: Node) -> None:
        _check_node(node)
        if node not in self.partition_of:
            raise PartitionError(f"{node.name} is in no partition: {self.why(node)}", node=node)


def execution_order(
    dependencies: Dependencies, partition_of: Mapping[Node, Hashable], preferred: Sequence[Hashable]
) -> list[Hashable]:
    """Order partitions so that each runs after all that it waits for, and otherwise as ``preferred``.

    Kahn's algorithm on the contracted graph with a heap of what is ready: O(E + V log V).

    Raises:
        CycleError: There is no such order; ``path`` shows why.
    """
    order = _order_if_any(dependencies, partition_of, preferred)
    if order is None:
        raise _cycle_error(dependencies, partition_of, _labels(dependencies, partition_of, preferred))
    return order


def _order_if_any(
    dependencies: Dependencies, partition_of: Mapping[Node, Hashable], preferred: Sequence[Hashable]
) -> list[Hashable] | None:
    order = group_order(dependencies, _labels(dependencies, partition_of, preferred), len(preferred))
    return None if order is None else [preferred[group] for group in order]


def group_order(dependencies: Dependencies, labels: Sequence[int], count: int) -> list[int] | None:
    """The labels 0 to count - 1 in an order that works, lowest first where there is a choice; None if none works."""
    group_of = [label if label >= 0 else count + index for index, label in enumerate(labels)]
    successors = dependencies.successor_lists
    members: dict[int, list[int]] = {}
    waiting: dict[int, int] = dict.fromkeys(group_of, 0)
    for index, group in enumerate(group_of):
        members.setdefault(group, []).append(index)
        for target in successors[index]:
            waiting[group_of[target]] += group_of[target] != group
    # Nodes outside go as soon as they can: they must not hold a partition back from its preferred place.
    ready = [(group if group < count else -1, group) for group in members if waiting[group] == 0]
    heapq.heapify(ready)
    order: list[int] = []
    done = 0
    while ready:
        _, group = heapq.heappop(ready)
        done += 1
        if group < count:
            order.append(group)
        for other in (group_of[target] for index in members[group] for target in successors[index]):
            if other != group:
                waiting[other] -= 1
                if waiting[other] == 0:
                    heapq.heappush(ready, (other if other < count else -1, other))
    return order if done == len(members) else None


def _partition_of(grouping: Grouping) -> dict[Node, Hashable]:
    """Read either form of a grouping; overlaps and empty partitions are refused here, where they can still be seen."""
    if isinstance(grouping, Mapping):
        return dict(grouping)
    partition_of: dict[Node, Hashable] = {}
    for number, group in enumerate(grouping):
        members = list(group)
        if not members:
            raise PartitionError(f"partition {number} is empty; leave it out")
        for node in members:
            if partition_of.get(node, number) != number:
                raise PartitionError(
                    f"partitions {partition_of[node]} and {number} overlap: both hold {node.name}", node=node
                )
            partition_of[node] = number
    return partition_of


def _check_members(graph: Graph, partition_of: Mapping[Node, Hashable]) -> None:
    foreign = also_as(PartitionError, AssertionError())  # what torch raises
    for node, name in partition_of.items():
        if not isinstance(node, Node):
            raise PartitionError(f"partition {name!r} holds {node!r}, which is not a torch.fx.Node")
        if node.graph is not graph:
            raise foreign(f"partition {name!r} holds {node.name}, a node of another graph", node=node)
        if node._erased:
            raise foreign(f"partition {name!r} holds {node.name}, which was erased from the graph", node=node)
        if node.op in _NEVER_ASSIGNED:
            raise PartitionError(
                f"partition {name!r} holds {node.name}, a node of kind {node.op}; those stay in the top-level graph",
                node=node,
            )


def _check_replicas(partition_of: Mapping[Node, Hashable], replicas: Mapping[Hashable, Iterable[Node]]) -> None:
    names = set(partition_of.values())
    for name, nodes in replicas.items():
        if name not in names:
            raise PartitionError(f"replicas are given for partition {name!r}, which holds no nodes of its own")
        for node in nodes:
            if node not in partition_of or partition_of[node] == name:
                where = "it is there already" if node in partition_of else "it is in no partition"
                raise PartitionError(f"{node.name} cannot be a replica in partition {name!r}: {where}", node=node)


def _checked_names(names: list[Hashable], partition_of: Mapping[Node, Hashable]) -> list[Hashable]:
    used, there = dict.fromkeys(partition_of.values()), set(names)
    if missing := [name for name in used if name not in there]:
        raise PartitionError(f"the order leaves out partition {missing[0]!r}")
    if empty := [name for name in names if name not in used]:
        raise PartitionError(f"partition {empty[0]!r} is empty; leave it out of the order")
    return names


def _preferred_order(dependencies: Dependencies, partition_of: Mapping[Node, Hashable]) -> list[Hashable]:
    """The partitions in the order of their first nodes."""
    ordered = sorted(partition_of, key=dependencies.position.__getitem__)
    return list(dict.fromkeys(partition_of[node] for node in ordered))


def _interleaved(
    dependencies: Dependencies, partition_of: Mapping[Node, Hashable], known: list[Hashable], fresh: list[Hashable]
) -> list[Hashable]:
    """The known partitions in their order, each new one before the first known one that stands behind it."""
    if not fresh:
        return known
    first: dict[Hashable, int] = {}
    for node, name in partition_of.items():
        position = dependencies.position[node]
        first[name] = min(position, first.get(name, position))
    reached = -1
    keys: dict[Hashable, tuple[int, int]] = {}
    for name in known:
        reached = max(reached, first[name])
        keys[name] = (reached, 0)
    keys.update({name: (first[name], 1) for name in fresh})
    return sorted([*known, *fresh], key=keys.__getitem__)


def _labels(dependencies: Dependencies, partition_of: Mapping[Node, Hashable], names: Sequence[Hashable]) -> list[int]:
    number = {name: index for index, name in enumerate(names)}
    return [number[partition_of[node]] if node in partition_of else -1 for node in dependencies.nodes]


def _exit_levels(dependencies: Dependencies, members: Sequence[Node]) -> dict[Node, int]:
    """For each member, the most often that a path to it left the members and came back; O(V + E)."""
    inside = {dependencies.position[node] for node in members}
    levels: dict[int, int] = {}
    for index in range(len(dependencies.nodes)):  # graph order is topological
        level = -1
        for other in dependencies.predecessors(index).tolist():
            re_entered = index in inside and other not in inside and levels[other] >= 0
            level = max(level, levels[other] + re_entered)
        levels[index] = max(level, 0) if index in inside else level
    return {node: levels[dependencies.position[node]] for node in members}


def _cycle_error(
    dependencies: Dependencies, partition_of: Mapping[Node, Hashable], labels: Sequence[int]
) -> CycleError:
    path = dependencies.cycle(labels) or []
    nodes = [dependencies.nodes[index] for index in path]
    homes = list(dict.fromkeys(repr(partition_of[node]) for node in nodes if node in partition_of))
    waits = "would wait for itself" if len(homes) == 1 else "would wait for each other"
    return also_as(CycleError, AssertionError())(  # what torch raises
        f"partition{'s' if len(homes) > 1 else ''} {', '.join(homes)} {waits}: {dependencies.describe(path)}; "
        "take a node of this path out, or put all of it in",
        path=nodes,
    )


def _refuse_order(names: Sequence[Hashable], found: Sequence[Hashable]) -> None:
    rank = {name: index for index, name in enumerate(names)}
    wrong = next(index for index, name in enumerate(found) if rank[name] != index)
    late, early = found[wrong], names[wrong]
    raise PartitionError(
        f"the order puts partition {early!r} at place {wrong}, but it waits for {late!r}; "
        f"an order that works is {list(found)!r}"
    )
