"""What kernels on the CPU need that gather, scatter, or add up rows where an index says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.converted_operands import index_bytes
from fxpasses.partitioners.tensor_sizes import bytes_as, concrete_size, is_half

__all__ = ["SCATTERED"]

_NUMBER = 8
_WIDE_ROWS = 16
"""So many elements a row has at least to be scattered as one."""
aten = torch.ops.aten


def _placed_bytes(_args: Sequence[Any], result: Tensor) -> int:
    """What is scattered in half precision, as floats."""
    return bytes_as(result, torch.float32) if is_half(result) else 0


def _gathered_bytes(args: Sequence[Any], result: Tensor) -> int:
    """The same, but of rows, which are copied."""
    return 0 if _is_of_rows(args[2], args[1], args[0]) else _placed_bytes(args, result)


def _scattered_bytes(args: Sequence[Any], result: Tensor) -> int:
    """What is added up in half precision, as floats; of rows, each thread adds one."""
    return _rows_bytes(result) if _falls_by_rows(args, result) else _placed_bytes(args, result)


def _rows_bytes(result: Tensor) -> int:
    """One for each thread, in half precision as floats."""
    return torch.get_num_threads() * _placed_bytes((), result) // max(1, concrete_size(result.shape[0]))


def _falls_by_rows(args: Sequence[Any], result: Tensor) -> bool:
    """Whether rows fall on places that are wide enough to sort them by where, as in a graph network."""
    if not _is_of_rows(args[2], args[1], args[3], result):
        return False
    return math.prod(map(concrete_size, args[2].shape[1:])) >= _WIDE_ROWS


def _is_of_rows(index: Tensor, along: int, *tensors: Any) -> bool:
    """Whether an index is repeated along dense rows of floating point."""
    if along % max(1, index.dim()) or index.dim() == 1 or any(map(concrete_size, index.stride()[1:])):
        return False
    return all(isinstance(each, Tensor) and each.is_floating_point() and each.is_contiguous() for each in tensors)


def _added_rows_bytes(args: Sequence[Any], result: Tensor) -> int:
    """The same where an index says on which row each is added: single elements if rows are narrow, or not dense."""
    along, dims = args[1] % max(1, result.dim()), result.dim()
    if dims == 1 or 0 < along < dims - 1:
        return 0
    is_wide = math.prod(map(concrete_size, result.shape[1:])) >= _WIDE_ROWS
    return _rows_bytes(result) if is_wide and along == 0 and args[3].is_contiguous() else _placed_bytes(args, result)


def _reduced_to_places_bytes(args: Sequence[Any], result: Tensor) -> int:
    """The same; for a mean, how many fall on each place, counted with ones, and which are none."""
    if args[4] != "mean" or _falls_by_rows(args, result):
        return _scattered_bytes(args, result)
    return _counts_bytes(result, bytes_as(args[3], args[3].dtype), _scattered_bytes(args, result))


def _reduced_rows_bytes(args: Sequence[Any], result: Tensor) -> int:
    """For a mean the same, where the ones are gone before it is looked which are none."""
    if args[4] != "mean":
        return 0
    ones = torch.empty_like(args[3], device="meta")
    return _counts_bytes(result, 0, bytes_as(ones, ones.dtype) + _added_rows_bytes((*args[:3], ones), result))


def _counts_bytes(result: Tensor, kept: int, counting: int) -> int:
    none = concrete_size(result.numel()) + _NUMBER + result.element_size()
    return bytes_as(result, result.dtype) + kept + max(counting, none)


def _by_numbers(args: Sequence[Any], result: Tensor, *, asks: Callable[[Sequence[Any], Tensor], int]) -> int:
    """The same, and the index as numbers of 64 bits."""
    return asks(args, result) + index_bytes(args[2:3])


_BY_INDEX: Mapping[Any, Callable[[Sequence[Any], Tensor], int]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *(aten.scatter.src, aten.scatter.value, aten.scatter_.src, aten.scatter_.value),
                *(aten.scatter.reduce, aten.scatter.value_reduce, aten.scatter_.reduce, aten.scatter_.value_reduce),
            ),
            _placed_bytes,
        ),
        aten.gather.default: _gathered_bytes,
        **dict.fromkeys((aten.scatter_add.default, aten.scatter_add_.default), _scattered_bytes),
        **dict.fromkeys((aten.scatter_reduce.two, aten.scatter_reduce_.two), _reduced_to_places_bytes),
    }
)
"""Kernels that have an index for each element."""

SCATTERED: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        **{func: partial(_by_numbers, asks=asks) for func, asks in _BY_INDEX.items()},
        **dict.fromkeys((aten.index_reduce.default, aten.index_reduce_.default), _reduced_rows_bytes),
        **dict.fromkeys((aten.index_add.default, aten.index_add_.default), _added_rows_bytes),
    }
)
"""By operator: bytes by its operands and its result."""
