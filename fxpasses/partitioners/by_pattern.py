"""Partitions around matches of patterns and hand-made groups: each stays whole, and grows by what is supported.

The functions of ExecuTorch's canonical partitioners keep their names and arguments here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
from torch.fx import Graph, GraphModule, Node

from fxpasses.errors import PartitionError, PatternError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.by_capability import CapabilityBasedPartitioner, Partition
from fxpasses.partitioners.given import lists_of_nodes, module_of
from fxpasses.partitioners.grouping.proposing import CapabilityOptions
from fxpasses.partitioners.support import CALLS, AnyOperatorSupport, OperatorSupportBase, any_chain, create_op_support

__all__ = [
    "GroupBasedPartitioner",
    "generate_grouped_partitions_from_list_of_nodes",
    "generate_partitions_from_list_of_nodes",
    "generate_pattern_op_partitions",
    "match_groups",
    "partition_by_pattern",
]


def match_groups(
    graph: GraphModule | Graph, patterns: Sequence[Any], *, ignore_literals: bool = False
) -> list[list[Node]]:
    """The calls of each match of each pattern, in graph order.

    Matches of one pattern do not overlap; where matches of two patterns do, the earlier pattern in the list has it.

    Args:
        graph: Where to look.
        patterns: In any form that :func:`fxpasses.partitioners.matching.find_matches` takes.
        ignore_literals: Let literals of the pattern be anything.

    Raises:
        PatternError: A pattern cannot work.
    """
    from fxpasses.partitioners.matching import find_matches  # here: only callers with patterns pay for the matcher

    taken: set[Node] = set()
    groups: list[list[Node]] = []
    for pattern in patterns:
        for match in find_matches(pattern, graph, ignore_literals=ignore_literals):
            nodes = [node for node in match.nodes if node.op in CALLS]
            if nodes and taken.isdisjoint(nodes):
                taken.update(nodes)
                groups.append(sorted(nodes))
    return sorted(groups, key=lambda group: group[0])


def partition_by_pattern(
    graph_module: GraphModule,
    patterns: Sequence[Any],
    op_support: AnyOperatorSupport | None = None,
    *,
    merge: bool = True,
    ignore_literals: bool = False,
    options: CapabilityOptions | None = None,
) -> Assignment:
    """Propose the matches of patterns as partitions that are never cut.

    Args:
        graph_module: The graph; it is not changed.
        patterns: In any form that :func:`fxpasses.partitioners.matching.find_matches` takes.
        op_support: What else may join the matches.
        merge: Whether matches may share a partition. Otherwise each is one of its own, and nothing joins it.
        ignore_literals: Let literals of the patterns be anything.
        options: What else to mind while merging.

    Raises:
        PatternError: The list is empty, or a pattern cannot work.
    """
    root = module_of(graph_module)
    if not len(patterns):
        raise PatternError("partition_by_pattern got an empty list of patterns; give at least one")
    groups = match_groups(root, patterns, ignore_literals=ignore_literals)
    if merge:
        return _grouping(root, groups, op_support, options).propose()
    matched = {node: None for group in groups for node in group}
    reasons = {
        node: "in no match of the given patterns"
        for node in root.graph.nodes
        if node.op in CALLS and node not in matched
    }
    return Assignment.of(root, groups, reasons=reasons)


def generate_pattern_op_partitions(
    graph_module: GraphModule,
    patterns: Sequence[Any] | None = None,
    partitions_list: Sequence[Sequence[Node]] | None = None,
    op_support: AnyOperatorSupport | None = None,
    ignore_literals: bool = False,
    *,
    partitions: Sequence[Sequence[Node]] | None = None,
) -> list[Partition]:
    """The largest partitions of matched, listed and supported nodes; matches and lists stay whole.

    Args:
        graph_module: The graph; it is not changed.
        patterns: Patterns, such as ``torch.fx.Graph`` objects.
        partitions_list: Lists of nodes to take in beside what the patterns match.
        op_support: What else may join.
        ignore_literals: Let literals of the patterns be anything.
        partitions: Another name for ``partitions_list``.

    Raises:
        PatternError: Nothing was given to go by, or a pattern cannot work.
        PartitionError: A list holds nodes of another graph, or two lists share a node.
    """
    root = module_of(graph_module)
    listed = lists_of_nodes(partitions_list or ()) + lists_of_nodes(partitions or ())
    if not patterns and not listed and op_support is None:
        raise PatternError(
            "nothing to partition by: the list of patterns is empty; give patterns, lists of nodes or an op_support"
        )
    groups = match_groups(root, patterns or (), ignore_literals=ignore_literals)
    return _grouping(root, _joined_groups([*groups, *listed]), op_support).propose_partitions()


def generate_partitions_from_list_of_nodes(
    graph_module: GraphModule,
    pattern_list: Sequence[Sequence[Node]] | None = None,
    op_support: AnyOperatorSupport | None = None,
) -> list[Partition]:
    """The largest partitions of listed and supported nodes; unlike matches, the lists may be cut.

    Raises:
        PartitionError: Neither lists nor an op_support were given, or a list holds nodes of another graph.
    """
    root = module_of(graph_module)
    support = _listed_support(root, pattern_list, op_support)
    return CapabilityBasedPartitioner(root, support, allows_single_node_partition=True).propose_partitions()


def generate_grouped_partitions_from_list_of_nodes(
    graph_module: GraphModule,
    pattern_list: Sequence[Sequence[Node]] | None = None,
    op_support: AnyOperatorSupport | None = None,
) -> list[Partition]:
    """Like :func:`generate_partitions_from_list_of_nodes`, but each list stays whole.

    Raises:
        PartitionError: Neither lists nor an op_support were given, a list holds foreign nodes, or two share one.
    """
    root = module_of(graph_module)
    support = _listed_support(root, pattern_list, op_support)
    groups = lists_of_nodes(pattern_list or ())
    return GroupBasedPartitioner(root, support, True, node_groups=groups).propose_partitions()


class GroupBasedPartitioner(CapabilityBasedPartitioner):
    """Like :class:`CapabilityBasedPartitioner`, with groups of nodes that go into one partition.

    Args:
        graph_module: The graph.
        operator_support: Asked once about each call.
        allows_single_node_partition: Whether a part may consist of one call.
        non_compute_ops: Names of functions that do not count as calls, beside views and getitem.
        allowed_single_node_partition_ops: Names of functions that may stand alone all the same.
        node_groups: The groups. Of each, the supported nodes stay together, with what stands between them; a group
            around an unsupported node cannot and stays outside.
        options: What torch's partitioner cannot do.

    Raises:
        PartitionError: Two groups share a node, or a group holds nodes of another graph.
    """

    def __init__(
        self,
        graph_module: GraphModule,
        operator_support: AnyOperatorSupport,
        allows_single_node_partition: bool = False,
        non_compute_ops: Sequence[str] | None = None,
        allowed_single_node_partition_ops: Sequence[str] | None = None,
        node_groups: Sequence[Iterable[Node]] | None = None,
        *,
        options: CapabilityOptions | None = None,
    ) -> None:
        groups = lists_of_nodes(node_groups or ())
        _refuse_shared(groups)
        given = options or CapabilityOptions()
        super().__init__(
            graph_module,
            operator_support,
            allows_single_node_partition,
            non_compute_ops,
            allowed_single_node_partition_ops,
            options=attrs.evolve(given, keep_together=[*given.keep_together, *groups], partial_groups=True),
        )
        self.node_groups = groups or None


def _grouping(
    graph_module: GraphModule,
    groups: Sequence[Sequence[Node]],
    op_support: AnyOperatorSupport | None,
    options: CapabilityOptions | None = None,
) -> CapabilityBasedPartitioner:
    """The partitioner whose supported nodes are those of the groups and of ``op_support``."""
    given = options or CapabilityOptions()
    return CapabilityBasedPartitioner(
        graph_module,
        _listed_support(graph_module, groups, op_support),
        allows_single_node_partition=True,
        options=attrs.evolve(given, keep_together=[*given.keep_together, *groups]),
    )


def _listed_support(
    graph_module: GraphModule,
    groups: Sequence[Iterable[Node]] | None,
    op_support: AnyOperatorSupport | None,
) -> AnyOperatorSupport:
    """What supports the listed nodes and those of ``op_support``; the listed ones are not asked about."""
    if groups is None:
        if op_support is None:
            raise PartitionError("nothing to partition by: give lists of nodes or an op_support")
        return op_support
    listed = {node: None for group in lists_of_nodes(groups) for node in group}
    for node in listed:
        if not isinstance(node, Node) or node.graph is not graph_module.graph:
            raise PartitionError(f"a list of nodes holds {node!r}, which is not a node of this graph")

    def in_a_listed_group(_: Any, node: Node) -> bool:
        return node in listed

    listing: OperatorSupportBase = create_op_support(in_a_listed_group)
    return listing if op_support is None else any_chain(listing, op_support)


def _refuse_shared(groups: Sequence[Sequence[Node]]) -> None:
    home: dict[Node, int] = {}
    for number, group in enumerate(groups):
        for node in group:
            if home.setdefault(node, number) != number:
                raise PartitionError(f"node {node.name} is in two groups: {home[node]} and {number}", node=node)


def _joined_groups(groups: Sequence[Sequence[Node]]) -> list[list[Node]]:
    """The groups, those that share a node made one."""
    home: dict[Node, list[Node]] = {}
    for group in groups:
        united: dict[Node, None] = {}
        for node in group:
            united.update(dict.fromkeys(home.get(node, [node])))
        members = list(united)
        home.update(dict.fromkeys(members, members))
    return [list(members) for members in {id(members): members for members in home.values()}.values()]
