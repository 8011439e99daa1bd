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
from fxpasses.partitioners.costs.lstm_bytes import lstm_backward_scratch_bytes, lstm_scratch_bytes
from fxpasses.partitioners.tensor_sizes import concrete_size, tensors_in

__all__ = ["may_need_scratch", "scratch_bytes"]

_BLOCKS = ((768, 256), (192, 64), (0, 32))
"""From how many queries on so many rows of attention are computed at once."""
_KEYS = 512
"""The most keys at once."""
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
    return _converted_bytes(func, args, result) if _is_pointwise(func) else 0


def may_need_scratch(target: Any, operands: Sequence[Tensor], result: Any) -> bool:
    """Whether a kernel may need something for itself, by its name and by the types of its operands and its result."""
    if target in _SCRATCH:
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


def _reduced_bytes(args: Sequence[Any], result: Any) -> int:
    """The operand of a sum in the type of the sum, which half precision has only in between."""
    given: Tensor = args[0]
    dtype = torch.float32 if given.dtype in (torch.bfloat16, torch.float16) else tensors_in(result)[0].dtype
    return 0 if given.dtype == dtype or _is_elsewhere(given) else _bytes(given, dtype)


def _contiguous_bytes(args: Sequence[Any], _result: Any) -> int:
    """A dense copy of an operand that has another layout."""
    given: Tensor = args[0]
    return 0 if given.is_contiguous() or _is_elsewhere(given) else _bytes(given, given.dtype)


def _channel_bytes(args: Sequence[Any], result: Any) -> int:
    """What normalization multiplies by and adds, for each channel."""
    given: Tensor = args[0]
    return 0 if _is_elsewhere(given) else 2 * concrete_size(given.shape[1]) * tensors_in(result)[0].element_size()


def _bag_bytes(_args: Sequence[Any], result: Any) -> int:
    """How many there are in each bag, counted once more, and as floats, where it is said to which bag each belongs."""
    bag_of, size_of = result[1:3]
    return 0 if _is_elsewhere(bag_of) or not concrete_size(bag_of.numel()) else _bytes(size_of, torch.int64) * 3 // 2


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

_SCRATCH: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
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
                *(aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.cumsum.default),
                *(aten.prod.default, aten.prod.dim_int, aten.any.default, aten.any.dim, aten.all.default, aten.all.dim),
            ),
            _reduced_bytes,
        ),
    }
)
