"""What kernels on the CPU need that pick elements by a mask, or one of those that are alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.converted_operands import index_bytes
from fxpasses.partitioners.costs.kernels.kernel_results import elements_together
from fxpasses.partitioners.costs.kernels.laid_out_copies import dense_copies
from fxpasses.partitioners.tensor_sizes import bytes_as, concrete_size

__all__ = ["PICKED"]

_NUMBER, _TABLES = 8, 512
_FEW_KNOWN, _MORE_KNOWN = 10, 0.145
"""To look for so many, times a power of how many are looked at, nothing is sorted."""
aten = torch.ops.aten


def _unique_bytes(args: Sequence[Any], result: Any) -> int:
    """All sorted, and from where; to sort takes that once more, to count where each begins. Truth values are not."""
    given: Tensor = args[0]
    if given.dtype is torch.bool:
        return dense_copies(args, result)
    places, is_counted = bytes_as(given, torch.int64), len(args) > 3 and args[3]
    begins = (concrete_size(result[0].numel()) + 1) * _NUMBER if is_counted else 0
    made = sum(bytes_as(each, each.dtype) for each in result)
    return dense_copies(args, result) + bytes_as(given, given.dtype) + places + max(begins, places - made)


def _unique_rows_bytes(args: Sequence[Any], result: Any, *, place: int = 1) -> int:
    """Them in order, and a dense copy with the dimension first along which they lie."""
    given: Tensor = args[0]
    if len(args) <= place or args[place] is None:
        return dense_copies(args, result)
    return bytes_as(given, given.dtype) + dense_copies([given.movedim(args[place], 0)], None)


def _known_bytes(args: Sequence[Any], _result: Any) -> int:
    """Both in one, sorted, and from where, if there are many to look for; each is there once, as far as is known."""
    count, many = (concrete_size(each.numel()) if isinstance(each, Tensor) else 1 for each in args[:2])
    if many < _FEW_KNOWN * count**_MORE_KNOWN:
        return 0
    element = max(each.element_size() for each in args[:2] if isinstance(each, Tensor))
    if isinstance(args[0], int) and not args[1].is_floating_point():
        element = _NUMBER  # a number is one of the widest type
    return 2 * (element + _NUMBER) * (count + many) + count * _NUMBER + _TABLES


def _masked_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Where masks are true, along each of their dimensions, and indices as numbers of 64 bits."""
    masks = [index for index in args[1] if _is_mask(index)]
    picked = concrete_size(result.numel()) // max(1, _elements_of_each(args[0], args[1])) if masks else 0
    numbers: int = sum(mask.dim() for mask in masks) * picked
    return numbers * _NUMBER + index_bytes(args[1])


def _put_bytes(args: Sequence[Any], _result: Any) -> int:
    """The same of values that are put where masks are true; one that is put everywhere is filled in."""
    masks = [index for index in args[1] if _is_mask(index)]
    values, is_added = args[2], len(args) > 3 and args[3]
    count = concrete_size(values.numel())
    if not masks or (count == 1 and not is_added):
        return index_bytes(args[1])
    most = math.prod(concrete_size(size) for mask in masks[:1] for size in mask.shape)
    picked = min(most, count // max(1, _elements_of_each(args[0], args[1]))) if count > 1 else most
    numbers: int = sum(mask.dim() for mask in masks) * picked
    return numbers * _NUMBER + index_bytes(args[1])


def _elements_of_each(given: Tensor, indices: Sequence[Tensor | None]) -> int:
    """How many elements are picked at once: those along dimensions that have no index."""
    place, count = 0, 1
    for index in indices:
        count *= concrete_size(given.shape[place]) if index is None else 1
        place += index.dim() if index is not None and _is_mask(index) else 1
    return count * math.prod(map(concrete_size, given.shape[place:]))


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _mask_bytes(args: Sequence[Any], result: Tensor) -> int:
    """How many are true before each one, ahead of the result; after it, twice, where one of both is not dense."""
    counted = elements_together(args) * _NUMBER
    is_dense = args[0].shape == args[1].shape and all(each.is_contiguous() for each in args)
    return max(0, counted + _NUMBER - bytes_as(result, result.dtype)) if is_dense else 2 * counted


def _unmasked_bytes(args: Sequence[Any], result: Tensor) -> int:
    """What a mask picks, ahead of the result, and then that once more with zeros behind it."""
    made = bytes_as(result, result.dtype)
    counted = elements_together(args[:2]) * _NUMBER
    is_dense = args[0].shape == args[1].shape and all(each.is_contiguous() for each in args[:2])
    return max(made, counted + _NUMBER - made) if is_dense else 2 * counted


PICKED: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        aten.index.Tensor: _masked_bytes,
        **dict.fromkeys((aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default), _put_bytes),
        aten.masked_select.default: _mask_bytes,
        aten.masked_scatter_backward.default: _unmasked_bytes,
        **dict.fromkeys((aten.isin.Tensor_Tensor, aten.isin.Scalar_Tensor), _known_bytes),
        aten._unique2.default: _unique_bytes,
        aten.unique_dim.default: _unique_rows_bytes,
        aten.unique_consecutive.default: partial(_unique_rows_bytes, place=3),
    }
)
"""By operator: bytes by its operands and its result."""
