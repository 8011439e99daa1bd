"""Compare and print the Python values that are written into a graph."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

__all__ = ["same_literal", "same_value", "show", "show_target"]


def same_literal(wanted: Any, found: Any) -> bool:
    """Equal in type and value; lists equal tuples, NaN equals NaN, and symbolic sizes are never asked to decide.

    ``True`` is not ``1`` and ``1`` is not ``1.0``: an operator may treat them differently.
    """
    if wanted is found:
        return True
    if isinstance(wanted, list | tuple) and isinstance(found, list | tuple):
        return len(wanted) == len(found) and all(same_literal(w, f) for w, f in zip(wanted, found, strict=True))
    if type(wanted) is not type(found) or isinstance(wanted, torch.SymInt | torch.SymFloat | torch.SymBool):
        return False
    if isinstance(wanted, float) and math.isnan(wanted):
        return math.isnan(found)
    if isinstance(wanted, dict):
        return wanted.keys() == found.keys() and all(same_literal(w, found[key]) for key, w in wanted.items())
    if isinstance(wanted, torch.Tensor):
        return False
    return bool(wanted == found)


def same_value(first: Any, second: Any) -> bool:
    """The same node, or equal literals; lists are compared item by item."""
    if first is second:
        return True
    if isinstance(first, Node) or isinstance(second, Node):
        return False
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(same_value(a, b) for a, b in zip(first, second, strict=True))
    return same_literal(first, second)


def show(value: Any) -> str:
    """A short text for a message."""
    if isinstance(value, Node):
        return value.name
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and not isinstance(value, torch._subclasses.FakeTensor):
            return f"tensor({value.item()})"
        return f"tensor of {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, list | tuple):
        inside = ", ".join(show(item) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def show_target(op: str, target: Any) -> str:
    """How a message calls what a node calls: ``aten.add.Tensor``, ``relu``, ``.view()``, ``a Linear module``."""
    if op == "call_method":
        return f".{target}()"
    if isinstance(target, str):
        return f"module {target!r}" if op == "call_module" else f"{op} {target!r}"
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(target)
    if op == "call_module" and isinstance(target, type):
        return f"a {target.__name__} module"
    return str(getattr(target, "__name__", target))
