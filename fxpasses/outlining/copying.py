"""Copy a graph module: graphs of its own, here and in the graph modules inside; tensors are shared."""

from __future__ import annotations

import copy

import torch
from torch.fx import Graph, GraphModule, Node

from fxpasses.collecting import collection_paused
from fxpasses.outlining.graph_writing import GraphWriter
from fxpasses.outlining.lazy_modules import lazy_graph_module

__all__ = ["copy_graph_module"]


def copy_graph_module(graph_module: GraphModule, *, inside: bool = True) -> tuple[GraphModule, dict[Node, Node]]:
    """A copy that can be changed while the original stays as it is. Linear in nodes.

    Args:
        graph_module: What to copy.
        inside: Whether the graph modules inside are copied, too; otherwise they are shared.

    Returns:
        The copy, and the copy of each node of the outermost graph.
    """
    graph, nodes = _copy_graph(graph_module.graph)
    twin = lazy_graph_module(graph, class_name=type(graph_module).__name__, training=graph_module.training)
    for name, value in vars(graph_module).items():
        if name == "_modules":
            vars(twin)[name] = {key: _copy_child(child) if inside else child for key, child in value.items()}
        elif name in ("_parameters", "_buffers"):
            vars(twin)[name] = dict(value)
        elif name == "_non_persistent_buffers_set":
            vars(twin)[name] = set(value)
        elif isinstance(value, torch.Tensor):
            vars(twin)[name] = value
    return twin, nodes


def _copy_child(child: torch.nn.Module | None) -> torch.nn.Module | None:
    return copy_graph_module(child)[0] if isinstance(child, GraphModule) else child


def _copy_graph(source: Graph) -> tuple[Graph, dict[Node, Node]]:
    """A graph with the same nodes under the same names."""
    writer = GraphWriter()
    writer.graph._tracer_cls = source._tracer_cls
    nodes: dict[Node, Node] = {}
    with collection_paused():
        for node in source.nodes:
            nodes[node] = writer.copy(node, nodes)
    writer.graph._codegen = copy.copy(source._codegen)
    return writer.graph, nodes
