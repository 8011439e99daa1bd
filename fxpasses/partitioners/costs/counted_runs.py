"""Count operators and modules that torch takes apart into others, by running them on tensors without data."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from fxpasses.partitioners.costs.kernels.composite_operators import is_composite
from fxpasses.partitioners.costs.operation_counts import COUNTERS, Counter, shape_of
from fxpasses.partitioners.costs.transform_counts import TRANSFORM_COUNTERS
from fxpasses.partitioners.tensor_sizes import concrete_size

__all__ = ["taken_apart", "within_module"]

_NO_META = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError)
"""What operators without a meta kernel raise."""


def taken_apart(target: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Count an operator that torch takes apart into counted ones; 0 where it does not, or has none.

    Args:
        target: An operator, or a function of torch as it stands in a traced graph.
        inputs: Its positional inputs; tensors may be fake.
        kwargs: Its other inputs.
    """
    return _on_meta(target, inputs, kwargs) if _has_counted_parts(target) else 0


def within_module(module: torch.nn.Module, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Count what a module of ``torch.nn`` that has parameters does; 0 for others, which may be anybody's code.

    The module itself is neither run nor changed.
    """
    if not type(module).__module__.startswith("torch.nn.") or next(module.parameters(), None) is None:
        return 0
    try:
        memo = {id(each): torch.nn.Parameter(each.detach().to("meta"), False) for each in module.parameters()}
        twin = copy.deepcopy(module, memo | {id(each): each.detach().to("meta") for each in module.buffers()})
    except _NO_META:
        return 0
    return _on_meta(twin, inputs, kwargs)


def _has_counted_parts(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return is_composite(target) or target.overloadpacket in flop_registry
    if isinstance(target, types.FunctionType):
        return (target.__module__ or "").startswith("torch.")
    packet = getattr(torch.ops.aten, getattr(target, "__name__", "") or "_", None)
    return packet is not None and any(is_composite(getattr(packet, each)) for each in packet.overloads())


def _on_meta(called: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    def to_meta(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return torch.empty(shape_of(leaf), dtype=leaf.dtype, device="meta")
        return concrete_size(leaf) if isinstance(leaf, torch.SymInt) else leaf

    args, named = pytree.tree_map(to_meta, (tuple(inputs), dict(kwargs)))
    if "device" in named:
        named["device"] = torch.device("meta")
    try:
        with FlopCounterMode(display=False, custom_mapping=_formulas()) as counter:
            called(*args, **named)
    except _NO_META:
        return 0
    return int(counter.get_total_flops())


@cache
def _formulas() -> dict[Any, Callable[..., int]]:
    """The formulas that torch's counter does not have, by operator."""
    known = {**TRANSFORM_COUNTERS, **COUNTERS}
    packets = {getattr(torch.ops.aten, name, None): counter for name, counter in known.items()}
    return {
        packet: _for_torch(counter)
        for packet, counter in packets.items()
        if packet is not None and packet not in flop_registry
    }


def _for_torch(counter: Counter) -> Callable[..., int]:
    def count(*inputs: Any, out_val: Any = None, **_kwargs: Any) -> int:
        return counter(inputs, out_val)

    count._get_raw = True  # type: ignore[attr-defined]  # so torch hands tensors in instead of their shapes
    return count
