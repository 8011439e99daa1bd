"""Operators that stay as they were captured: in a mode, or in a type.

Dropout, batch norms and others carry a flag in the program; ``train()`` and ``eval()`` of a module do not reach it. Nor
does ``half()`` reach the types that operators name: that of zeros, or of a cast back to the type of an input.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

__all__ = ["captured_in_types", "captured_otherwise"]

_FLAGS = ("train", "training")
_SHARES = ("p", "dropout", "dropout_p")


def captured_otherwise(graph: Graph, training: bool) -> list[Node]:
    """The operators that go on as in the other mode than ``training``; linear in nodes."""
    return [node for node in graph.nodes if _mode_of(node) is (not training)]


def captured_in_types(module: GraphModule, types: Container[torch.dtype]) -> list[Node]:
    """The operators that name one of some types, in regions and branches, too; linear in nodes."""
    graphs = [each.graph for each in module.modules() if isinstance(each, GraphModule)]
    return [node for graph in graphs for node in graph.nodes if node.op == "call_function" and _names_one(node, types)]


def _names_one(node: Node, types: Container[torch.dtype]) -> bool:
    leaves = pytree.tree_leaves((node.args, node.kwargs))
    return any(isinstance(leaf, torch.dtype) and leaf in types for leaf in leaves)


def _mode_of(node: Node) -> bool | None:
    """Whether an operator was captured in training; None where it does the same in both modes."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    given = _arguments(node, node.target)
    if any(isinstance(given.get(name), (int, float)) and given[name] == 0 for name in _SHARES):
        return None
    if "dropout_p" in given:  # attention has no flag: nothing is dropped in evaluation
        return True
    return next((given[name] for name in _FLAGS if isinstance(given.get(name), bool)), None)


def _arguments(node: Node, target: torch._ops.OpOverload) -> dict[str, Any]:
    """What an operator is given, by name, defaults included."""
    schema = target._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    names = (argument.name for argument in schema)
    return {**defaults, **dict(zip(names, node.args, strict=False)), **node.kwargs}
