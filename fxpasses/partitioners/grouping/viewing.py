"""The dense view of a graph, without the analysis of effects where the graph has none.

Most graphs that are partitioned are functional; then data is the only order, and half of the work can be left out.
"""

from __future__ import annotations

from torch.fx import GraphModule

from fxpasses.dependencies import Dependencies

__all__ = ["view_of"]


def view_of(graph_module: GraphModule) -> Dependencies:
    """The dependencies of a graph: data edges, and the order edges of effects where it has any."""
    from fxpasses.partitioners.matching.quiet import is_quiet  # here: the package of the matcher loads slowly

    quiet = is_quiet(graph_module.graph.nodes)
    return Dependencies.of(graph_module, effects=False if quiet else None)
