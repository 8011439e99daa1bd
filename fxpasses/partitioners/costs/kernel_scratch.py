"""What kernels on the CPU need for themselves while they run, and ask the allocator for where no dispatcher sees it.

Operands are converted to the type that is computed in, and laid out as the kernel wants them. Of other devices nothing
is known. The sizes are what torch's allocator was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.convolution_scratch import (
    convolution_backward_scratch_bytes,
    convolution_scratch_bytes,
)
from fxpasses.partitioners.costs.linear_algebra_scratch import LINEAR_ALGEBRA
from fxpasses.partitioners.costs.lstm_bytes import lstm_backward_scratch_bytes, lstm_scratch_bytes
from fxpasses.partitioners.costs.product_scratch import product_scratch_bytes
from fxpasses.partitioners.costs.transposed_copies import tile_bytes
from fxpasses.partitioners.tensor_sizes import concrete_size, tensors_in

__all__ = ["may_need_scratch", "scratch_bytes"]

_BLOCKS = ((768, 256), (192, 64), (0, 32))
"""From how many queries on so many rows of attention are computed at once."""
_KEYS = 512
"""The most keys at once."""
_NUMBER = 8
_FEW_POINTS, _NEVER_BY_PRODUCT = 25, 2
"""Up to so many points distances are computed one by one, or always, if the caller says so."""
_SMALL_IMAGE = 128
"""Up to so many rows and columns an image is resized with channels last."""
aten = torch.ops.aten


def scratch_bytes(func: Any, args: Sequence[Any], result: Any) -> int:
    """The most bytes that a kernel has at one time beside its operands and its result.

    Args:
        func: An operator, as the dispatcher sees it.
        args: Its operands: tensors, with or without data.
        result: What it makes of them.
    """
    if (asks := _SCRATCH.get(func)) is not None:
        return asks(args, result)
    return _converted_bytes(func, args, result) + _number_bytes(func, args, result) if _is_pointwise(func) else 0


def may_need_scratch(target: Any, args: Sequence[Any], operands: Sequence[Tensor], result: Any) -> bool:
    """Whether a kernel may need something for itself, by its name and by the types of its operands and its result."""
    if target in _SCRATCH or _wraps_number(target, args):
        return True
    return _is_pointwise(target) and len({each.dtype for each in (*operands, *tensors_in(result))}) > 1


def _is_pointwise(func: Any) -> bool:
    return torch.Tag.pointwise in getattr(func, "tags", ())


def _converted_bytes(func: Any, args: Sequence[Any], result: Any) -> int:
    """Copies of the operands of another type than the one that an operator on elements computes in."""
    operands = tensors_in([each for place, each in enumerate(args) if place != _CONDITIONS.get(func)])
    made = tensors_in(result)
    if not operands or not made or _is_elsewhere(made[0]):
        return 0
    common = made[0].dtype
    if common is torch.bool:  # a comparison
        common = operands[0].dtype
        for each in operands[1:]:
            common = torch.promote_types(common, each.dtype)
    return sum(_bytes(each, common) for each in operands if each.dtype != common)


def _wraps_number(func: Any, args: Sequence[Any]) -> bool:
    """Whether a number is made a tensor: where there could be one, or for want of a kernel that takes numbers."""
    if not _is_pointwise(func) or not any(isinstance(each, (int, float, complex)) for each in args):
        return False
    if func._schema.name in _TAKE_NUMBERS:
        return False
    takes = zip(func._schema.arguments, args, strict=False)
    return func._overloadname == "Scalar" or any(
        str(each.type) == "Tensor" and isinstance(given, (int, float, complex)) for each, given in takes
    )


def _number_bytes(func: Any, args: Sequence[Any], result: Any) -> int:
    """A number as torch has numbers, and in the type that is computed in."""
    made = tensors_in(result)
    if not made or _is_elsewhere(made[0]) or not _wraps_number(func, args):
        return 0
    return _NUMBER + max(each.element_size() for each in (*made, *tensors_in(args)))


def _reduced_bytes(args: Sequence[Any], result: Any) -> int:
    """The operand of a sum in the type of the sum, which half precision has only in between."""
    given: Tensor = args[0]
    made = tensors_in(result)[0]
    if _is_elsewhere(given):
        return 0
    is_half = given.dtype in (torch.bfloat16, torch.float16)
    dtype = torch.float32 if is_half else made.dtype
    if given.dtype == dtype:
        return 0
    return _bytes(given, dtype) + (_bytes(made, dtype) if is_half else 0)


def _mean_bytes(args: Sequence[Any], result: Any) -> int:
    """That of a sum, or what it is divided by."""
    divisor = 0 if _is_elsewhere(args[0]) else _NUMBER + tensors_in(result)[0].element_size()
    return max(_reduced_bytes(args, result), divisor)


def _contiguous_bytes(args: Sequence[Any], _result: Any) -> int:
    """A dense copy of an operand that has another layout."""
    given: Tensor = args[0]
    return 0 if given.is_contiguous() or _is_elsewhere(given) else _bytes(given, given.dtype) + tile_bytes(given)


def _copied_by_tiles(args: Sequence[Any], result: Any) -> int:
    """A dense copy of a matrix by its columns."""
    source = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else args[0]
    made: Tensor = tensors_in(result)[0]
    is_by_tiles = made.is_contiguous() and made.dtype == source.dtype and made.shape == source.shape
    return tile_bytes(source) if is_by_tiles and not _is_elsewhere(made) else 0


def _exponents_bytes(args: Sequence[Any], result: Tensor) -> int:
    """What is left of the operand when the largest is taken away, and the largest."""
    return 0 if _is_elsewhere(result) else _bytes(args[0], result.dtype) + _bytes(result, result.dtype)


def _picked_bytes(args: Sequence[Any], _result: Any) -> int:
    """A copy with the rows that are looked through, unless they are dense."""
    given: Tensor = args[0]
    if len(args) == 1 or not given.dim() or _is_elsewhere(given):
        return 0 if _is_elsewhere(given) else _bytes(given, given.dtype)
    return _contiguous_bytes([given.transpose(args[1], -1)], None)


def _smallest_bytes(args: Sequence[Any], _result: Any) -> int:
    """A copy of the operand, and where each element was."""
    given: Tensor = args[0]
    return 0 if _is_elsewhere(given) else _bytes(given, given.dtype) + _bytes(given, torch.int64)


def _sorted_bytes(args: Sequence[Any], _result: Any) -> int:
    """Where each element of a row goes."""
    given: Tensor = args[0]
    along = args[1] if len(args) > 1 and isinstance(args[1], int) and not isinstance(args[1], bool) else -1
    if _is_elsewhere(given) or not given.dim():
        return 0
    return torch.get_num_threads() * torch.int64.itemsize * concrete_size(given.shape[along])


def _unfolded_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Memory as large as the operand, which turns out to be too small."""
    size = _bytes(args[0], args[0].dtype)
    return size if not _is_elsewhere(result) and _bytes(result, result.dtype) > size else 0


def _distance_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Both operands with two columns more, where a product of matrices gives the distances."""
    left: Tensor = args[0]
    right: Tensor = args[1]
    is_euclidean, mode = (args[2] == 2, args[3]) if len(args) > 3 else (True, 1)
    many = any(concrete_size(each.shape[-2]) > _FEW_POINTS for each in (left, right))
    if _is_elsewhere(result) or not is_euclidean or mode == _NEVER_BY_PRODUCT or not (many or mode == 1):
        return 0
    rows = sum(math.prod(map(concrete_size, each.shape[:-1])) for each in (left, right))
    return rows * (concrete_size(left.shape[-1]) + 2) * left.element_size()


def _resized_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Both images with channels last, where the result is small."""
    given: Tensor = args[0]
    if sum(map(concrete_size, result.shape[-2:])) > _SMALL_IMAGE:
        return _taps_bytes(args, result, taps=2)
    if _is_elsewhere(given) or given.is_contiguous(memory_format=torch.channels_last):
        return 0
    return _bytes(given, given.dtype) + _bytes(result, result.dtype)


def _taps_bytes(args: Sequence[Any], result: Tensor, taps: int = 4) -> int:
    """For each row and column of the result, which ones of the operand are added up, and with which weights."""
    if _is_elsewhere(result):
        return 0
    weight = max(result.element_size(), torch.float32.itemsize)
    places = sum(map(concrete_size, result.shape[2:]))
    return taps * places * (torch.int64.itemsize + weight)


def _inverse_transform_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Where several dimensions are transformed: what is made of the others, and a copy that may be written."""
    return 0 if _is_elsewhere(result) or len(args[1]) == 1 else 2 * _bytes(args[0], args[0].dtype)


def _length_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Of complex numbers, as complex numbers."""
    given: Tensor = args[0]
    return _bytes(given, given.dtype) if given.is_complex() and not _is_elsewhere(result) else 0


def _channel_bytes(args: Sequence[Any], result: Any) -> int:
    """What normalization multiplies by and adds, for each channel."""
    given: Tensor = args[0]
    return 0 if _is_elsewhere(given) else 2 * concrete_size(given.shape[1]) * tensors_in(result)[0].element_size()


def _bag_bytes(_args: Sequence[Any], result: Any) -> int:
    """How many there are in each bag, counted once more, and as floats, where it is said to which bag each belongs.

    Before, that is added up from where bags begin.
    """
    bag_of, size_of = result[1:3]
    if _is_elsewhere(bag_of) or not concrete_size(bag_of.numel()):
        return 0
    return max(_bytes(size_of, torch.int64) * 3 // 2, _bytes(bag_of, torch.int64))


def _attention_bytes(args: Sequence[Any], _result: Any) -> int:
    """What each thread has of a block of attention: weights, their maxima and sums, and rows of the result.

    In half precision the weights are there twice. Source: Dao, "FlashAttention-2" (arXiv:2307.08691), algorithm 1.
    """
    query, key = args[0], args[1]
    if _is_elsewhere(query):
        return 0
    queries, keys, width = (concrete_size(size) for size in (query.shape[-2], key.shape[-2], query.shape[-1]))
    rows = min(queries, next(rows for least, rows in _BLOCKS if queries >= least))
    weights = rows * min(keys, _KEYS)
    in_half = 2 * weights if query.dtype in (torch.bfloat16, torch.float16) else 0
    return torch.get_num_threads() * (4 * (weights + 2 * rows + rows * width) + in_half)


def _is_elsewhere(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu"


def _bytes(tensor: Tensor, dtype: torch.dtype) -> int:
    return math.prod(map(concrete_size, tensor.shape)) * dtype.itemsize


_CONDITIONS: Mapping[Any, int] = MappingProxyType(
    {
        **dict.fromkeys((aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar), 0),
        **dict.fromkeys((aten.masked_fill.Scalar, aten.masked_fill.Tensor), 1),
        **dict.fromkeys((aten.masked_fill_.Scalar, aten.masked_fill_.Tensor), 1),
    }
)
"""Which operand decides, and is read as it is."""

_TAKE_NUMBERS = frozenset(("aten::lerp", "aten::masked_fill", "aten::masked_fill_"))
"""Operators whose kernels take the number as it is."""

_SCRATCH: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        **LINEAR_ALGEBRA,
        **dict.fromkeys(
            (
                *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
                *(aten.mv.default, aten.addmv.default),
            ),
            product_scratch_bytes,
        ),
        **dict.fromkeys((aten.abs.default, aten.angle.default), _length_bytes),
        **dict.fromkeys((aten.clone.default, aten.copy_.default, aten.copy.default), _copied_by_tiles),
        aten.logsumexp.default: _exponents_bytes,
        **dict.fromkeys(
            (aten.median.default, aten.median.dim, aten.nanmedian.default, aten.nanmedian.dim), _picked_bytes
        ),
        aten.kthvalue.default: _smallest_bytes,
        aten.sort.default: _sorted_bytes,
        aten.im2col.default: _unfolded_bytes,
        **dict.fromkeys((aten._cdist_forward.default, aten._euclidean_dist.default), _distance_bytes),
        **dict.fromkeys(
            (
                *(aten.upsample_bilinear2d.default, aten.upsample_bilinear2d.vec),
                *(aten.upsample_nearest2d.default, aten.upsample_nearest2d.vec),
            ),
            _resized_bytes,
        ),
        **dict.fromkeys(
            (
                *(aten.upsample_bicubic2d.default, aten.upsample_bicubic2d.vec),
                *(aten.upsample_trilinear3d.default, aten.upsample_trilinear3d.vec),
            ),
            _taps_bytes,
        ),
        aten._fft_c2r.default: _inverse_transform_bytes,
        **dict.fromkeys((aten.mean.default, aten.mean.dim), _mean_bytes),
        aten.mkldnn_rnn_layer.default: lstm_scratch_bytes,
        aten.mkldnn_rnn_layer_backward.default: lstm_backward_scratch_bytes,
        aten.convolution.default: convolution_scratch_bytes,
        aten.convolution_backward.default: convolution_backward_scratch_bytes,
        aten._scaled_dot_product_flash_attention_for_cpu.default: _attention_bytes,
        **dict.fromkeys((aten._embedding_bag.default, aten._embedding_bag_forward_only.default), _bag_bytes),
        **dict.fromkeys(
            (
                *(aten._native_batch_norm_legit_no_training.default, aten.native_batch_norm.default),
                *(aten._native_batch_norm_legit.default, aten._native_batch_norm_legit_functional.default),
            ),
            _channel_bytes,
        ),
        **dict.fromkeys(
            (
                *(aten._softmax.default, aten._log_softmax.default, aten.native_layer_norm.default),
                *(aten.avg_pool2d.default, aten._adaptive_avg_pool2d.default),
            ),
            _contiguous_bytes,
        ),
        **dict.fromkeys(
            (
                *(aten.sum.default, aten.sum.dim_IntList, aten.cumsum.default),
                *(aten.prod.default, aten.prod.dim_int, aten.any.default, aten.any.dim, aten.all.default, aten.all.dim),
            ),
            _reduced_bytes,
        ),
    }
)
