"""Questions about, and fusing of, groups of nodes that were made by hand or by a partitioner.

The names and results are those of ``torch.fx.passes.utils.fuser_utils``; order made by effects counts like data.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.errors import CycleError, PartitionError, also_as
from fxpasses.outlining import outline
from fxpasses.outlining.outline_plan import Constants, Policy
from fxpasses.outlining.part_names import numbered_names
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.given import lists_of_nodes, nodes_of
from fxpasses.partitioners.grouping.small_parts import live_nodes
from fxpasses.partitioners.grouping.viewing import view_of
from fxpasses.partitioners.tensor_sizes import tensor_bytes, tensors_in

__all__ = ["constants_by_size", "fuse_by_partitions", "topo_sort", "validate_partition"]


def constants_by_size(limit: int, *, small: Policy = "duplicate", large: Policy = "share") -> Constants:
    """A policy for constants: ``small`` up to ``limit`` bytes, ``large`` above.

    >>> import torch
    >>> policy = constants_by_size(16)
    >>> policy("bias", torch.zeros(4), ("left", "right")), policy("weight", torch.zeros(4, 4), ("left", "right"))
    ('duplicate', 'share')
    """

    def policy(_: str, value: Any, __: tuple[str, ...]) -> Policy:
        return small if sum(tensor_bytes(tensor) for tensor in tensors_in(value)) <= limit else large

    return policy


def fuse_by_partitions(
    gm: GraphModule,
    partitions: Sequence[Mapping[Node, int | None] | Iterable[Node]],
    prefix: str = "fused_",
    always_return_tuple: bool = False,
    *,
    constants: Constants = "pass_in",
    dependencies: Dependencies | None = None,
) -> GraphModule:
    """Make each partition a submodule, in place.

    Inputs of a submodule come in the order of their producers in the graph, outputs in graph order. Nodes outside keep
    their order, as far as the partitions allow it. Of a partition that no output and no effect depends on, no
    submodule is made.

    Args:
        gm: The module; changed in place, and recompiled.
        partitions: The nodes of each.
        prefix: The submodules are called this and their place in the list, as far as a child can be called so; where
            the module has something of that name, with another number behind it.
        always_return_tuple: Whether a submodule with a single output gives a tuple, too.
        constants: Where parameters and constants live that a partition reads by ``get_attr`` nodes outside of it: they
            stay outside and are passed in, as in torch, or ``"share"``: they move into all that use them, or another
            policy of :func:`fxpasses.outlining.outline`.
        dependencies: The dense view of this graph, if the caller has it.

    Returns:
        ``gm``.

    Raises:
        PartitionError: Partitions overlap, are empty or hold foreign nodes (which is also an AssertionError).
        CycleError: They would wait for each other; ``path`` shows how. Nothing was changed. Also an AssertionError.

    Complexity:
        O(V + E) for all partitions together.
    """
    _check_module(gm)
    groups = lists_of_nodes(partitions)
    dependencies = dependencies if dependencies is not None else view_of(gm)
    Assignment.of(gm, groups, dependencies=dependencies)
    alive = live_nodes(dependencies)
    names = numbered_names(range(len(groups)), prefix)
    kept = [
        (names[place], nodes)
        for place, nodes in enumerate(groups)
        if alive is None or any(alive[dependencies.position[node]] for node in nodes)
    ]
    outline(
        gm,
        kept,
        constants=constants,
        always_return_tuple=always_return_tuple,
        move_state=constants != "pass_in",
        dependencies=dependencies,
    )
    gm.graph.lint()
    gm.recompile()
    return gm


def _check_module(given: Any) -> None:
    if not isinstance(given, GraphModule):
        kind = type(given).__name__
        raise also_as(PartitionError, TypeError())(
            f"fuse_by_partitions changes a GraphModule in place, got {kind}; trace or export the module first"
        )


def validate_partition(partition: Iterable[Node]) -> bool:
    """Whether the nodes can be one submodule: no path, over data or effects, leaves them and comes back.

    Raises:
        PartitionError: They are not nodes of one graph.
    """
    nodes = nodes_of(partition, "the nodes of a partition")
    if not nodes:
        return True
    for node in nodes:
        if node.graph is not nodes[0].graph:
            raise PartitionError(f"a partition holds {node!r}, which is not a node of the same graph as {nodes[0]}")
    graph = nodes[0].graph
    dependencies = Dependencies.of(graph.owning_module or graph)
    return dependencies.is_convex(dependencies.position[node] for node in nodes)


def topo_sort(nodes: Sequence[Node]) -> list[Node]:
    """Order nodes so that each stands after those of its inputs that are among them; otherwise they keep their order.

    Kahn's algorithm with a heap of places: O(E + V log V).

    Raises:
        PartitionError: It is no list of nodes.
        CycleError: Nodes use each other in a circle; ``path`` holds those that do. Also an AssertionError.
    """
    nodes = nodes_of(nodes, "the nodes to sort")
    place = {node: number for number, node in enumerate(nodes)}
    waiting = {node: sum(used in place for used in node.all_input_nodes) for node in place}
    ready = [number for node, number in place.items() if waiting[node] == 0]
    heapq.heapify(ready)
    ordered: list[Node] = []
    while ready:
        node = nodes[heapq.heappop(ready)]
        ordered.append(node)
        for user in node.users:
            if user in waiting:
                waiting[user] -= 1
                if waiting[user] == 0:
                    heapq.heappush(ready, place[user])
    if len(ordered) < len(place):
        stuck = [node for node in place if waiting[node] > 0]
        raise also_as(CycleError, AssertionError())(
            f"these nodes use each other in a circle: {', '.join(map(str, stuck))}", path=stuck
        )
    return ordered
