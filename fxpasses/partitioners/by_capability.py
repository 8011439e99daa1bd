"""Cut out what a backend can run, as the fewest and largest groups that make no cycle.

The names, arguments and results are those of ``torch.fx.passes.infra.partitioner``; the groups are the same wherever
torch's are the fewest possible. How they are found is told in :mod:`fxpasses.partitioners.grouping.levels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fxpasses.errors import PartitionError, also_as
from fxpasses.outlining.outline_plan import Constants
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.fusing import fuse_by_partitions
from fxpasses.partitioners.given import list_of, module_of
from fxpasses.partitioners.grouping.proposing import CapabilityOptions, Proposal, propose
from fxpasses.partitioners.grouping.small_parts import SizeRule
from fxpasses.partitioners.support import AnyOperatorSupport, check_support, function_name
from fxpasses.programs.program_modules import module_of_program

__all__ = ["CapabilityBasedPartitioner", "CapabilityOptions", "Partition", "partition_by_capability"]


class Partition:
    """A mutable group of nodes, as :meth:`CapabilityBasedPartitioner.propose_partitions` lists them.

    Args:
        id: Its number.
        nodes: The nodes in it.
        node_orders: For each of them its place counted from the end of the graph.
    """

    def __init__(
        self,
        id: int | None = None,
        nodes: Iterable[Node] | None = None,
        node_orders: Iterable[int] | None = None,
    ) -> None:
        self.id = id
        members = list(nodes or ())
        orders: list[int | None] = [None] * len(members) if node_orders is None else list(node_orders)
        if len(members) != len(orders):
            raise PartitionError(
                f"nodes and node_orders must have the same length; got {len(members)} nodes and {len(orders)} orders"
            )
        self.nodes: dict[Node, int | None] = dict(zip(members, orders, strict=True))

    def __repr__(self) -> str:
        return str(self.nodes)

    def add_node(self, node: Node, node_order: int | None = None) -> None:
        """Add a node at the end, or change the order of one that is there."""
        self.nodes[node] = node_order

    def remove_node(self, node: Node) -> None:
        """Take a node out.

        Raises:
            PartitionError: It is not there (also a KeyError).
        """
        if node not in self.nodes:
            raise also_as(PartitionError, KeyError())(f"partition {self.id} does not hold {node}", node=node)
        del self.nodes[node]

    def size(self) -> int:
        """How many nodes are in it."""
        return len(self.nodes)


def partition_by_capability(
    graph_module: GraphModule | ExportedProgram,
    operator_support: Any,
    options: CapabilityOptions | None = None,
    *,
    size_rule: SizeRule | None = None,
) -> Assignment:
    """Propose the fewest and largest convex groups of supported calls.

    Args:
        graph_module: The graph; it is not changed.
        operator_support: Asked once about each call.
        options: What else to mind.
        size_rule: Which parts are too small; by default none is.

    Returns:
        Partitions 0, 1, 2, ... in execution order; :meth:`Assignment.why` tells of each node outside why.

    Raises:
        PartitionError: The support object cannot be asked, or a group to keep together holds foreign nodes.

    Complexity:
        O(V + E) with ``horizontal``, and near-linear without; one call of ``operator_support`` per node.
    """
    root = module_of(graph_module)
    return propose(root, operator_support, options or CapabilityOptions(), size_rule).assignment()


class CapabilityBasedPartitioner:
    """Propose and fuse groups of supported nodes.

    Args:
        graph_module: The graph. Of an exported program, ``.module()`` is partitioned; the program stays as it is.
        operator_support: An object with ``is_node_supported(submodules, node)``; asked once about each call.
        allows_single_node_partition: Whether a part may consist of one call.
        non_compute_ops: Names of functions that do not count as calls, beside views and getitem.
        allowed_single_node_partition_ops: Names of functions that may stand alone all the same.
        skip_horizontal_fusion: Join a node only with parts that use it.
        options: What torch's partitioner cannot do.

    Raises:
        PartitionError: An argument is of the wrong type (also a TypeError).
    """

    def __init__(
        self,
        graph_module: GraphModule | ExportedProgram,
        operator_support: AnyOperatorSupport,
        allows_single_node_partition: bool = False,
        non_compute_ops: Sequence[str] | None = None,
        allowed_single_node_partition_ops: Sequence[str] | None = None,
        skip_horizontal_fusion: bool = False,
        *,
        options: CapabilityOptions | None = None,
    ) -> None:
        if isinstance(graph_module, ExportedProgram):
            graph_module = module_of_program(graph_module, check_guards=True)
        self.graph_module = module_of(graph_module)
        self.operator_support = check_support(operator_support)
        self.allows_single_node_partition = allows_single_node_partition
        self.non_compute_ops = list(non_compute_ops or ())
        self.allowed_single_node_partition_ops = list(allowed_single_node_partition_ops or ())
        self.skip_horizontal_fusion = skip_horizontal_fusion
        self.options = options or CapabilityOptions()

    def propose(self) -> Assignment:
        """The proposal as an :class:`Assignment`, with the reasons of all nodes that are outside.

        Parts that no output and no effect depends on are left out.
        """
        return self._proposal(keep_dead=False).assignment()

    def propose_partitions(self) -> list[Partition]:
        """The proposal as torch's partitioner lists it: from the last part to the first.

        Within a part nodes stand in graph order, with their place counted from the end of the graph; elements of tuples
        that were moved to their producer stand last. Dead parts are listed, as torch does, but never fused.
        """
        return [Partition(number, nodes, orders) for number, nodes, orders in self._proposal(keep_dead=True).listed()]

    def fuse_partitions(
        self, partitions: list[Partition], prefix: str = "fused_", *, constants: Constants = "share"
    ) -> GraphModule:
        """Make each partition a submodule, in place; see :func:`fxpasses.partitioners.fusing.fuse_by_partitions`.

        By default the parameters and constants that a partition reads move into it.

        Raises:
            PartitionError: Partitions overlap, are empty or hold foreign nodes; or it is no list of Partitions.
            CycleError: They would wait for each other.
        """
        given = list_of(partitions, "partitions")
        groups = [_nodes_of(partition, place) for place, partition in enumerate(given)]
        return fuse_by_partitions(self.graph_module, groups, prefix, constants=constants)

    def partition_and_fuse(self, prefix: str = "fused_", *, constants: Constants = "share") -> GraphModule:
        """Propose, then fuse what was proposed."""
        return self.fuse_partitions(self.propose_partitions(), prefix, constants=constants)

    def remove_bookend_non_compute_ops(self, partitions: list[Partition]) -> None:
        """Take away, in place, calls of ``non_compute_ops`` that only other such calls separate from the border."""
        names = frozenset(self.non_compute_ops)
        for partition in list_of(partitions, "partitions"):
            idle = {
                node for node in partition.nodes if node.op == "call_function" and function_name(node.target) in names
            }
            at_start: set[Node] = set()
            at_end: set[Node] = set()
            ordered = sorted(partition.nodes)
            for node in ordered:
                if node in idle and all(
                    used in at_start or used not in partition.nodes for used in node.all_input_nodes
                ):
                    at_start.add(node)
            for node in reversed(ordered):
                if node in idle and all(user in at_end or user not in partition.nodes for user in node.users):
                    at_end.add(node)
            for node in [each for each in partition.nodes if each in at_start or each in at_end]:
                partition.remove_node(node)

    def _proposal(self, *, keep_dead: bool) -> Proposal:
        horizontal = self.options.horizontal and not self.skip_horizontal_fusion
        options = attrs.evolve(self.options, horizontal=horizontal)
        rule = None
        if not self.allows_single_node_partition:
            rule = SizeRule(frozenset(self.non_compute_ops), frozenset(self.allowed_single_node_partition_ops))
        return propose(self.graph_module, self.operator_support, options, rule, keep_dead=keep_dead)


def _nodes_of(partition: Partition, place: int) -> list[Node]:
    nodes = getattr(partition, "nodes", None)
    if nodes is None:
        raise also_as(PartitionError, TypeError())(
            f"partition {place} is {partition!r}; it must be a Partition, as propose_partitions gives them"
        )
    return list(nodes)
