"""What operators on elements copy on the CPU: operands in the type that is computed in, and numbers as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

from fxpasses.partitioners.tensor_sizes import bytes_as, tensors_in

__all__ = [
    "common_type",
    "converted_bytes",
    "copies_bytes",
    "in_place_bytes",
    "index_bytes",
    "is_pointwise",
    "number_bytes",
    "wraps_number",
]

_NUMBER = 8
aten = torch.ops.aten


def is_pointwise(func: Any) -> bool:
    """Whether an operator makes each element of one of each operand."""
    return torch.Tag.pointwise in getattr(func, "tags", ()) or func in _POINTWISE_UNTAGGED


def wraps_number(func: Any, args: Sequence[Any]) -> bool:
    """Whether a number is made a tensor: where there could be one, or for want of a kernel that takes numbers."""
    if func in _FOR_EACH:
        return True
    if not is_pointwise(func) or not any(isinstance(each, (int, float, complex)) for each in args):
        return False
    if func._schema.name in _TAKE_NUMBERS:
        return False
    takes = zip(func._schema.arguments, args, strict=False)
    return func._overloadname == "Scalar" or any(
        str(each.type) == "Tensor" and isinstance(given, (int, float, complex)) for each, given in takes
    )


def common_type(*operands: Tensor) -> torch.dtype:
    """The type that operands of several types are computed in."""
    return elementwise_dtypes(*operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)[1]


def copies_bytes(operands: Iterable[Tensor], common: torch.dtype) -> int:
    """Copies in one type of the operands that are of another."""
    return sum(bytes_as(each, common) for each in operands if each.dtype != common)


def index_bytes(indices: Iterable[Any]) -> int:
    """Copies of indices of 32 bits where kernels take those of 64."""
    return sum(bytes_as(each, torch.int64) for each in indices if getattr(each, "dtype", None) is torch.int32)


def in_place_bytes(written: Tensor, operand: Tensor) -> int:
    """What is converted where an operand is put together with what is written in place: that one there and back."""
    return copies_bytes((written, written, operand), common_type(written, operand))


def converted_bytes(func: Any, args: Sequence[Any], result: Any) -> int:
    """Copies of the operands of another type than the one that an operator on elements computes in.

    What is written in place is computed in the type of all operands, and converted back.
    """
    operands = tensors_in([each for place, each in enumerate(args) if place != _CONDITIONS.get(func)])
    made = tensors_in(result)
    if not operands or not made or made[0].device.type != "cpu":
        return 0
    common = made[0].dtype
    is_written = func._schema.is_mutable and func not in _CONDITIONS
    if common is torch.bool or is_written:  # a comparison
        common = common_type(*operands)
    written = made[:1] if is_written else []
    return copies_bytes((*operands, *written), common)


def number_bytes(func: Any, args: Sequence[Any], result: Any) -> int:
    """A number as torch has numbers, and in the type that is computed in."""
    if not wraps_number(func, args):
        return 0
    tensors = tensors_in([result, args])
    is_here = bool(tensors) and tensors[0].device.type == "cpu"
    return _NUMBER + max(each.element_size() for each in tensors) if is_here else 0


_CONDITIONS: Mapping[Any, int] = MappingProxyType(
    {
        **dict.fromkeys((aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar), 0),
        **dict.fromkeys((aten.masked_fill.Scalar, aten.masked_fill.Tensor), 1),
        **dict.fromkeys((aten.masked_fill_.Scalar, aten.masked_fill_.Tensor), 1),
    }
)
"""Which operand decides, and is read as it is."""

_POINTWISE_UNTAGGED = frozenset(
    (
        *(aten.floor_divide.default, aten.floor_divide.Scalar),
        *(aten.floor_divide_.Tensor, aten.floor_divide_.Scalar),
    )
)
"""Operators on elements that torch does not call so."""

_FOR_EACH = frozenset(
    getattr(getattr(aten, f"_foreach_{name}{end}"), overload)
    for name in ("add", "sub", "mul", "div")
    for end in ("", "_")
    for overload in ("Scalar", "ScalarList")
)
"""Operators on lists that call one on elements for each tensor."""

_TAKE_NUMBERS = frozenset(("aten::lerp", "aten::masked_fill", "aten::masked_fill_"))
"""Operators whose kernels take the number as it is."""
