"""Which elements operators write that write only some of a tensor: rows of a cache, positions that an index names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fxpasses.partitioners.costs.operation_counts import shape_of

__all__ = ["adds_to_rows", "elements_written"]

_BY_KEY = ("setitem", "index_put_")
_BY_SOURCE = ("index_copy_", "index_add_", "index_reduce_")
_BY_INDEX = ("scatter_", "scatter_add_", "scatter_reduce_")
_WRITES = (*_BY_KEY, *_BY_SOURCE, *_BY_INDEX, "index_fill_")
_ADDS = ("index_add_", "index_reduce_", "scatter_add_", "scatter_reduce_")
_ACCUMULATE = 3


def elements_written(
    name: str, inputs: Sequence[Any], named: Mapping[str, Any], operands: Sequence[torch.Tensor]
) -> int | None:
    """How many elements an operator writes into its first operand; None where it writes all of it, or into none.

    Args:
        name: Its name without namespace and overload.
        inputs: Its positional inputs.
        named: Those that are given by name.
        operands: The tensors among both.
    """
    if not operands or name not in _WRITES:
        return None
    shape = shape_of(operands[0])
    if name in _BY_KEY:
        index = inputs[1] if len(inputs) > 1 else named.get("indices", ())
        return _picked(shape, index if name == "setitem" else tuple(slice(None) if e is None else e for e in index))
    if len(operands) < 2:
        return None
    if name in _BY_SOURCE:
        return math.prod(shape_of(operands[-1]))
    if name in _BY_INDEX:
        return math.prod(shape_of(operands[1]))
    dim = inputs[1] if len(inputs) > 1 else named.get("dim", 0)
    return math.prod(shape_of(operands[1])) * math.prod(shape) // max(1, shape[dim] if shape else 1)


def adds_to_rows(name: str, inputs: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether it reads what it writes to."""
    if name == "index_put_":
        return bool(inputs[_ACCUMULATE] if len(inputs) > _ACCUMULATE else named.get("accumulate", False))
    return name in _ADDS


def _picked(shape: Sequence[int], index: Any) -> int:
    """How many elements an index names; all where that is not known: of a mask, of what torch alone can read."""

    def without_data(entry: Any) -> Any:
        if isinstance(entry, torch.Tensor):
            return torch.empty(shape_of(entry), dtype=entry.dtype, device="meta")
        return entry

    entries = index if isinstance(index, tuple) else (index,)
    flat = [each for entry in entries for each in (entry if isinstance(entry, list) else [entry])]
    if any(isinstance(each, bool) or getattr(each, "dtype", None) in (torch.bool, torch.uint8) for each in flat):
        return math.prod(shape)
    try:
        return torch.empty(tuple(shape), device="meta")[tuple(map(without_data, entries))].numel()
    except (IndexError, TypeError):
        return math.prod(shape)
