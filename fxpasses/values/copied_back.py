"""The copies that ``ExportedProgram.module()`` writes for what a program changes: torch records no value for them."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from fxpasses.values.recorded_values import has_value, set_value, value_of_arguments

__all__ = ["record_copies_back"]


def record_copies_back(graph_module: GraphModule) -> None:
    """Record what a copy back gives, where that is missing: the value that is written to. O(copies).

    A model that gives back a buffer or an input that it has changed returns such a copy.
    """
    for node in graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        written = node.args[0]
        if not has_value(node) and isinstance(written, Node) and has_value(written):
            set_value(node, value_of_arguments(written))
