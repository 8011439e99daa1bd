"""Let nodes call something else: before a graph is partitioned, what an accelerator calls by another name."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule

from fxpasses.editing import insert_before, replace_nodes

__all__ = ["replace_target_nodes_with"]


def replace_target_nodes_with(
    fx_module: GraphModule, old_op: str, old_target: Any, new_op: str, new_target: Any
) -> None:
    """Replace each node of one kind and target by one of another, with the same arguments and name, in place.

    Args:
        fx_module: The module; recompiled.
        old_op: The kind of the nodes to replace, such as ``"call_function"``.
        old_target: What they call.
        new_op: The kind of their replacements.
        new_target: What these call.
    """
    graph = fx_module.graph
    old = [node for node in graph.nodes if node.op == old_op and node.target == old_target]
    replacements = {
        node: insert_before(node, new_target, node.args, dict(node.kwargs), op=new_op, replaces=[node]) for node in old
    }
    names = {new: node.name for node, new in replacements.items()}
    replace_nodes(replacements)
    for node, name in names.items():
        node.name = name
    fx_module.recompile()
