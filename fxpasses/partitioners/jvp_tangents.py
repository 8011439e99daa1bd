"""In which derivatives (``torch.func.jvp``) a value has tangents, each as large as what was recorded of the value."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fxpasses.partitioners.tensor_sizes import tensors_in
from fxpasses.values import nested_graph_modules

__all__ = ["Levels", "brings_tangent", "level_of", "note_tangents", "tangent_levels"]

Levels = tuple[int, ...]
_ENTERS, _LEAVES = "_make_dual", "_unpack_dual"
_DEEPER = {"_jvp_increment_nesting": 1, "_jvp_decrement_nesting": -1}
_LEVELS: WeakKeyDictionary[Node, Levels] = WeakKeyDictionary()
"""The derivatives in which a value has tangents: who walks the graph notes them here."""
_AT: WeakKeyDictionary[Node, int] = WeakKeyDictionary()
"""Which derivative a node brings tangents into, or out of."""


def note_tangents(graph_module: GraphModule) -> None:
    """Note which values of a graph and of its bodies have tangents. O(nodes and edges)."""
    for inner in nested_graph_modules(graph_module):
        depth = 0
        for node in inner.graph.nodes:
            name = getattr(node.target, "__name__", "")
            depth += _DEEPER.get(name, 0)
            _AT.pop(node, None)
            if name in (_ENTERS, _LEAVES):
                _AT[node] = depth
            levels = _levels(node, name, depth)
            _note(node, levels)
            if levels and isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
                _note_written(node.args[0], levels)


def _levels(node: Node, name: str, depth: int) -> Levels:
    if node.op == "output" or not any(_is_real(tensor) for tensor in tensors_in(node.meta.get("val"))):
        return ()
    found = {level for used in node.all_input_nodes for level in _LEVELS.get(used, ())}
    if name == _ENTERS:
        found.add(depth)
    elif name == _LEAVES:
        found.discard(depth)
    return tuple(sorted(found))


def _is_real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _note(node: Node, levels: Levels) -> None:
    if levels:
        _LEVELS[node] = levels
    elif _LEVELS:
        _LEVELS.pop(node, None)


def _note_written(node: Any, levels: Levels) -> None:
    """What is written to, and what it is a view of."""
    while isinstance(node, Node) and node.op == "call_function":
        _note(node, tuple(sorted({*_LEVELS.get(node, ()), *levels})))
        node = node.args[0] if node.args else None


def tangent_levels(node: Node) -> Levels:
    """The derivatives in which a value has tangents, outermost first."""
    return _LEVELS.get(node, ()) if _LEVELS else ()


def level_of(node: Node) -> int | None:
    """The derivative into which a node brings a tangent, or of which it takes one out; None for other nodes."""
    return _AT.get(node) if _AT else None


def brings_tangent(node: Node) -> bool:
    """Whether a node puts a value and a tangent together."""
    return getattr(node.target, "__name__", "") == _ENTERS
