"""Operators that behave differently in training: a captured model keeps the mode in which it was captured.

Dropout, batch norms and others carry a flag in the program; ``train()`` and ``eval()`` of a module do not reach it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

__all__ = ["captured_otherwise"]

_FLAGS = ("train", "training")
_SHARES = ("p", "dropout", "dropout_p")


def captured_otherwise(graph: Graph, training: bool) -> list[Node]:
    """The operators that go on as in the other mode than ``training``; linear in nodes."""
    return [node for node in graph.nodes if _mode_of(node) is (not training)]


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
