"""Nodes that are treated in their own way: what goes into each partition that uses it."""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from fxpasses.effects.operators import ALWAYS_VIEWS
from fxpasses.partitioners.costs.kernels.dry_runs import makes_a_copy

__all__ = ["constant_views", "is_aten_view", "is_pulled", "is_tuple_of_views", "writes_back"]

_CUTTING = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unbind", "hsplit", "vsplit", "dsplit"})


def is_pulled(node: Node) -> bool:
    """Whether a node goes into each partition that uses it: an input, an attribute, or a view of attributes alone.

    ``weight.t()`` in a graph of ``make_fx`` is such a view: the weight lives where the product is.
    """
    return node.op in ("placeholder", "get_attr") or (is_aten_view(node) and _comes_from_attributes(node))


def constant_views(graph_module: GraphModule) -> dict[Node, None]:
    """The views of attributes alone, in graph order; O(nodes)."""
    found: dict[Node, None] = {}
    for node in graph_module.graph.nodes:
        if is_aten_view(node) and all(used.op == "get_attr" or used in found for used in node.all_input_nodes):
            found[node] = None
    return found


def is_aten_view(node: Node) -> bool:
    """Whether it calls an ``aten`` operator that gives another view of its input and writes nothing.

    A ``reshape`` or a ``to`` that copies is none, see
    :func:`~fxpasses.partitioners.costs.kernels.dry_runs.makes_a_copy`.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or not node.all_input_nodes:
        return False
    is_alias = any(result.alias_info is not None for result in target._schema.returns)
    is_always = target._schema.name.removeprefix("aten::") in ALWAYS_VIEWS
    return is_always or (is_alias and not makes_a_copy(node))


def is_tuple_of_views(node: Node) -> bool:
    """Whether it cuts a tensor into views, as ``torch.chunk`` does; torch's partitioner takes no tuples at all."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name in _CUTTING


def writes_back(node: Node) -> bool:
    """Whether it does nothing but copy a result to an input or an attribute.

    ``ExportedProgram.module()`` has such nodes for what a decomposed program gives as new values.
    """
    if node.target is not torch.ops.aten.copy_.default or any(user.op != "output" for user in node.users):
        return False
    written = node.args[0]
    return isinstance(written, Node) and written.op in ("placeholder", "get_attr")


def _comes_from_attributes(node: Node) -> bool:
    waiting, seen = list(node.all_input_nodes), {node}
    while waiting:
        used = waiting.pop()
        if used in seen or used.op == "get_attr":
            continue
        seen.add(used)
        if not is_aten_view(used):
            return False
        waiting += used.all_input_nodes
    return True
