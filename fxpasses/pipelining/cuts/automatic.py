"""The automatic cut of a graph with autocast or grad-mode regions: stages enter them again, so that they may be cut.

Elsewhere a region stays whole, since its markers hold everything around them in place. Here the cut is looked for in
the graph without markers; it holds if no node has to pass a marker for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch.fx import Graph, GraphModule, Node

from fxpasses.outlining.opening import open_regions
from fxpasses.outlining.regions import is_marker, is_region
from fxpasses.pipelining.cuts.balancing import Balance

__all__ = ["automatic_cut"]


def automatic_cut(source: GraphModule, balanced: Callable[[GraphModule], Balance]) -> tuple[dict[Node, int], Balance]:
    """Find the stage of each node.

    Args:
        source: The graph; regions that hold parameters are opened.
        balanced: Finds the cut of a graph.

    Returns:
        The stages, for all nodes but markers if regions are cut, and what is known of the cut.
    """
    open_regions(source, _holds_parameters)
    if any(map(is_marker, source.graph.nodes)):
        apart, twins = _without_markers(source)
        balance = balanced(apart)
        stage_of = {node: balance.stage_of[twin] for node, twin in twins.items() if twin in balance.stage_of}
        if _passes_no_marker(source, stage_of):
            return stage_of, balance
    balance = balanced(source)
    return dict(balance.stage_of), balance


def _holds_parameters(region: Node) -> bool:
    """Whether a region is more than a few operators on values: only then it is worth a cut."""
    body = next((argument for argument in region.args if isinstance(argument, Node)), None)
    return is_region(region) and any(used.op == "get_attr" for used in region.all_input_nodes if used is not body)


def _without_markers(source: GraphModule) -> tuple[GraphModule, dict[Node, Node]]:
    """The same graph without its markers, and its node for each of the source's."""
    graph = Graph()
    twins: dict[Node, Node] = {}
    for node in source.graph.nodes:
        if not is_marker(node):
            twins[node] = graph.node_copy(node, twins.__getitem__)
    return GraphModule(source, graph), twins


def _passes_no_marker(source: GraphModule, stage_of: Mapping[Node, int]) -> bool:
    """Whether everything before each marker is in no later stage than everything behind it."""
    reached, closed = 0, 0
    for node in source.graph.nodes:
        if is_marker(node):
            closed = reached
        elif (stage := stage_of.get(node)) is not None:
            if stage < closed:
                return False
            reached = max(reached, stage)
    return True
