"""A quick look at whether a graph does nothing but compute, so that the analysis of effects can be left out.

Most graphs that are matched are functional, and then there is no order to be kept beside the data's. The answer is one
lookup a node; "no" only means that :mod:`fxpasses.effects` has to be asked.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node

from fxpasses.effects.analysis import USER_REGISTRY

__all__ = ["is_quiet"]

_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.pow)
_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_OPERATORS = frozenset((*_ARITHMETIC, *_COMPARISONS, operator.matmul, operator.neg, operator.getitem))
_STATEFUL = frozenset(["running_mean", "dropout_p", "dropout", "train"])
_ENDS = frozenset(["placeholder", "get_attr", "output"])


def is_quiet(nodes: Iterable[Node]) -> bool:
    """Whether no node writes, draws random numbers, has a side effect or switches a mode, as far as schemas tell."""
    known: dict[Any, bool] = {}
    for node in nodes:
        if node.op in _ENDS:
            continue
        target = node.target
        quiet = known.get(target)
        if quiet is None:
            quiet = known[target] = _target_is_quiet(node.op, target) and USER_REGISTRY.rule_for(target) is None
        if not quiet or "out" in node.kwargs:
            return False
    return True


@lru_cache(maxsize=4096)
def _target_is_quiet(op: str, target: Any) -> bool:
    if op not in ("call_function", "call_method"):
        return False
    if target in _OPERATORS:
        return True
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace == "aten" and _overload_is_quiet(target)
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    is_torch = isinstance(target, str) or getattr(torch, name, None) is target
    if not is_torch or type(target).__name__ not in ("str", "builtin_function_or_method"):
        return False
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() and not name.endswith("_") else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False
    overloads = [getattr(packet, each) for each in packet.overloads()]  # type: ignore[no-untyped-call]
    return all(_overload_is_quiet(each) for each in overloads if "out" not in each._overloadname)


def _overload_is_quiet(overload: torch._ops.OpOverload) -> bool:
    schema = overload._schema
    noisy = torch.Tag.nondeterministic_seeded in overload.tags or schema.is_mutable
    if noisy or any(argument.name in _STATEFUL for argument in schema.arguments):
        return False
    return bool(schema.returns) and not overload.__name__.startswith("_assert")
