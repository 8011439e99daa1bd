"""What kernels on the CPU need that reduce: sums, means, norms, and the elements that they pick of a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.converted_operands import copies_bytes
from fxpasses.partitioners.costs.kernels.laid_out_copies import dense_copies, lie_together
from fxpasses.partitioners.tensor_sizes import bytes_as, concrete_size, is_half, tensor_bytes, tensors_in

__all__ = ["REDUCED", "angle_bytes", "length_bytes"]

_NUMBER = 8
aten = torch.ops.aten


def length_bytes(args: Sequence[Any], _result: Any) -> int:
    """Of complex numbers, as complex numbers."""
    given: Tensor = args[0]
    return bytes_as(given, given.dtype) if given.is_complex() else 0


def angle_bytes(args: Sequence[Any], result: Tensor) -> int:
    """The same; whole numbers in the type of the angles."""
    given: Tensor = args[0]
    is_whole = not given.is_complex() and given.dtype != result.dtype
    return bytes_as(given, result.dtype) if is_whole else length_bytes(args, result)


def _reduced_bytes(args: Sequence[Any], result: Any) -> int:
    """The operand of a sum, in the type of the sum.

    Half precision is added up as floats where what is added up does not lie together: the channels of a batch.
    """
    given: Tensor = args[0]
    made = tensors_in(result)[0]
    if given.dtype != made.dtype:
        return bytes_as(given, made.dtype)
    along = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple, range)) else []
    if not is_half(given) or not along or lie_together(given, along):
        return 0
    return bytes_as(given, torch.float32) + bytes_as(made, torch.float32)


def _sum_bytes(args: Sequence[Any], result: Any) -> int:
    """The same of all elements, where no dimensions are named: not those of a slice, or one that is repeated."""
    given: Tensor = args[0]
    named = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else []
    return _reduced_bytes((given, named or range(given.dim())), result)


def _mean_bytes(args: Sequence[Any], result: Any) -> int:
    """That of a sum, which half precision has as floats, or what it is divided by."""
    given: Tensor = args[0]
    made = tensors_in(result)[0]
    beside = _NUMBER + made.element_size()
    if not is_half(made):
        return max(_reduced_bytes(args, result), beside)
    divisor = _NUMBER + torch.float32.itemsize
    return bytes_as(made, torch.float32) + max(copies_bytes((given,), torch.float32), divisor)


def _counted_bytes(args: Sequence[Any], _result: Any) -> int:
    """Which are not zero, and that as numbers to be added up."""
    given: Tensor = args[0]
    if len(args) == 1 or args[1] in (None, []):
        return _NUMBER * torch.get_num_threads()
    return bytes_as(given, torch.int64) + (0 if given.dtype is torch.bool else bytes_as(given, torch.bool))


def _norm_bytes(args: Sequence[Any], result: Tensor) -> int:
    """The operand in the type of the result; how large complex numbers are, for the largest one."""
    given: Tensor = args[0]
    if given.is_complex():
        order = args[1] if len(args) > 1 else 2
        real = given.element_size() // 2 * concrete_size(given.numel())
        if result.element_size() * 2 == given.element_size():
            return real + length_bytes(args, result) if math.isinf(order) else 0
        return 2 * bytes_as(given, result.dtype)
    return bytes_as(given, result.dtype) if given.dtype != result.dtype else 0


def _spread_of_numbers_bytes(args: Sequence[Any], result: Any) -> int:
    """Numbers where there is one result; of complex ones those of the real and of the imaginary parts."""
    results = tensors_in(result)
    made = sum(bytes_as(each, each.dtype) for each in results)
    number = max(results[0].element_size(), torch.float32.itemsize)
    return _NUMBER + 2 * number + (2 * made if args[0].is_complex() else 0)


def _exponents_bytes(args: Sequence[Any], result: Tensor) -> int:
    """What is left of the operand when the largest is taken away, and the largest, and what a sum of it needs."""
    given: Tensor = args[0]
    converted = 0 if given.dtype == result.dtype else bytes_as(given, result.dtype)
    left = torch.empty_like(given, dtype=result.dtype, device="meta")
    summing = _reduced_bytes((left, *args[1:]), result)
    return converted + tensor_bytes(left) + bytes_as(result, result.dtype) + summing


def _picked_bytes(args: Sequence[Any], _result: Any) -> int:
    """A copy with the rows that are looked through, unless they are dense, or one element that is repeated."""
    given: Tensor = args[0]
    if len(args) == 1 or not given.dim():
        return bytes_as(given, given.dtype)
    along, step = args[1] % given.dim(), concrete_size(given.stride(args[1]))
    if step == 0 or (step == 1 and along == given.dim() - 1):
        return 0
    return dense_copies([given.transpose(args[1], -1)], None)


def _smallest_bytes(args: Sequence[Any], _result: Any) -> int:
    """A copy of the operand, and where each element was."""
    given: Tensor = args[0]
    return bytes_as(given, given.dtype) + bytes_as(given, torch.int64)


REDUCED: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *(aten.nansum.default, aten.cumsum.default, aten.cumprod.default),
                *(aten.prod.default, aten.prod.dim_int, aten.any.default, aten.any.dim, aten.all.default, aten.all.dim),
            ),
            _reduced_bytes,
        ),
        **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList), _sum_bytes),
        **dict.fromkeys((aten.mean.default, aten.mean.dim), _mean_bytes),
        **dict.fromkeys((aten.count_nonzero.default, aten.count_nonzero.dim_IntList), _counted_bytes),
        aten.linalg_vector_norm.default: _norm_bytes,
        **dict.fromkeys(
            (
                *(aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction),
                *(aten.var.dim, aten.std.dim, aten.var.default, aten.std.default),
            ),
            _spread_of_numbers_bytes,
        ),
        aten.logsumexp.default: _exponents_bytes,
        **dict.fromkeys(
            (aten.median.default, aten.median.dim, aten.nanmedian.default, aten.nanmedian.dim), _picked_bytes
        ),
        aten.kthvalue.default: _smallest_bytes,
    }
)
"""What each of them needs, by its operands and its result."""
