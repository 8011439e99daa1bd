"""Which calls may have their first two operands swapped without changing the result."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node

__all__ = ["commutes", "target_commutes"]

_COMPARISONS = ("maximum", "minimum", "fmax", "fmin", "eq", "ne")
_LOGIC = ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor")
_NAMES = frozenset(("add", "mul", "hypot", "logaddexp", "logaddexp2", "gcd", "lcm", *_COMPARISONS, *_LOGIC))
_OPERATORS = frozenset(
    [operator.add, operator.mul, operator.and_, operator.or_, operator.xor, operator.eq, operator.ne]
)
_SEQUENCE_OPERATORS = frozenset([operator.add, operator.mul])


def commutes(node: Node) -> bool:
    """Whether ``op(a, b)`` and ``op(b, a)`` mean the same at this node.

    ``add(a, b, alpha=2)`` does not commute, and neither does ``+`` between shapes, lists or tuples.
    """
    if not target_commutes(node.op, node.target):
        return False
    if node.target in _SEQUENCE_OPERATORS and any(_may_be_sequence(operand) for operand in node.args[:2]):
        return False
    alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
    return isinstance(alpha, int | float) and alpha == 1


@lru_cache(maxsize=4096)
def target_commutes(op: str, target: Any) -> bool:
    """Whether calls of this target may commute, as far as the target tells."""
    if op == "call_method":
        return target in _NAMES
    if op != "call_function":
        return False
    if target in _OPERATORS:
        return True
    if isinstance(target, torch._ops.OpOverload):
        packet = target.overloadpacket
        return str(packet).startswith("aten.") and packet.__name__ in _NAMES and target._overloadname != "out"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return str(target).startswith("aten.") and target.__name__ in _NAMES
    name = getattr(target, "__name__", "")
    return name in _NAMES and (getattr(torch, name, None) is target or getattr(torch.Tensor, name, None) is target)


def _may_be_sequence(operand: Any) -> bool:
    """Whether ``+`` on this operand may join sequences: literals tell, values tell, else the way it is made tells."""
    for _ in range(16):  # a slice of a sum of shapes: a handful of steps, never the whole graph
        if not isinstance(operand, Node):
            return isinstance(operand, list | tuple | str)
        if "val" in operand.meta:
            return isinstance(operand.meta["val"], list | tuple)
        if operand.op == "call_method":
            return operand.target in ("size", "split", "chunk", "unbind") and len(operand.args) == 1
        if operand.op != "call_function" or not operand.args:
            return False
        if operand.target is getattr:
            return operand.args[1] == "shape"
        is_slice = operand.target is operator.getitem and isinstance(operand.args[1], slice)
        if not is_slice and operand.target not in _SEQUENCE_OPERATORS:
            return False
        operand = operand.args[0]
    return True
