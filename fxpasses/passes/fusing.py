"""Fuse groups of nodes into submodules, in place: what capability partitioners do with their proposals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch.fx import GraphModule, Node

from fxpasses.dependencies import Dependencies
from fxpasses.errors import PartitionError
from fxpasses.outline_plan import Constants
from fxpasses.outlining import outline

__all__ = ["fuse_by_partitions"]


def fuse_by_partitions(
    gm: GraphModule,
    partitions: Sequence[Mapping[Node, int | None] | Iterable[Node]],
    prefix: str = "fused_",
    always_return_tuple: bool = False,
    *,
    constants: Constants = "pass_in",
    dependencies: Dependencies | None = None,
) -> GraphModule:
    """Replace each partition by a call of a new submodule, as torch's ``fuser_utils.fuse_by_partitions`` does.

    Nodes outside of partitions keep their identity and, unless the partitions force it, their order. Order that comes
    from in-place writes, random numbers and other effects is kept like data dependencies.

    Args:
        gm: Changed in place; call ``gm.recompile()`` when done with it.
        partitions: The nodes of each, as a list or as the keys of a dict; ``get_attr`` nodes may be among them and
            then move inside. Partition i becomes ``gm.<prefix>i``.
        prefix: How the submodules are called.
        always_return_tuple: Also submodules with one output give a tuple.
        constants: Where parameters, buffers and constants live that ``get_attr`` nodes outside of all partitions
            read; as in torch they stay outside and are passed in. See :func:`fxpasses.outlining.outline`.
        dependencies: The dense view of this graph, if the caller has it.

    Returns:
        ``gm``.

    Raises:
        PartitionError: A partition is empty, overlaps with another, or holds nodes of another graph.
        CycleError: Partitions wait for each other; ``path`` shows why. Nothing has been changed then.

    Example:
        >>> import torch
        >>> from torch.fx import symbolic_trace
        >>> gm = symbolic_trace(lambda x: torch.relu(x + 1) * 2)
        >>> add, relu = list(gm.graph.nodes)[1:3]
        >>> print(fuse_by_partitions(gm, [[add, relu]]).graph)
        graph():
            %x : [num_users=1] = placeholder[target=x]
            %fused_0 : [num_users=1] = call_module[target=fused_0](args = (%x,), kwargs = {})
            %mul : [num_users=1] = call_function[target=operator.mul](args = (%fused_0, 2), kwargs = {})
            return mul
    """
    groups = [(f"{prefix}{number}", list(nodes)) for number, nodes in enumerate(partitions)]
    for name, nodes in groups:
        if not nodes:
            raise PartitionError(f"partition {name!r} is empty; leave it out")
        _check_nodes(gm, name, nodes)
    outline(
        gm,
        groups,
        constants=constants,
        always_return_tuple=always_return_tuple,
        move_state=constants != "pass_in",
        dependencies=dependencies,
    )
    return gm


def _check_nodes(gm: GraphModule, name: str, nodes: Iterable[Node]) -> None:
    for node in nodes:
        if node.graph is not gm.graph:
            raise PartitionError(
                f"partition {name!r} holds {node}, which is not a node of this module's graph; "
                "propose partitions for the module that is fused",
                node=node,
            )
        if node._erased:
            raise PartitionError(f"partition {name!r} holds {node}, which was erased from the graph", node=node)
