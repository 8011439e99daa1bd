"""What resizing images on the CPU needs: which pixels are added up with which weights, and rows that are resized.

With ``antialias``, and for bytes, one dimension is resized after the other: all rows, then columns of what that gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.laid_out_copies import dense_copies
from fxpasses.partitioners.tensor_sizes import concrete_size, tensor_bytes

__all__ = ["RESIZED"]

_SMALL_IMAGE = 128
"""Up to so many rows and columns an image is resized with channels last."""
_COLORS, _PIXEL = 3, 4
"""Images of so many channels are resized with channels last by one thread; bytes of up to four channels by pixels."""
_INDICES = 4
"""Numbers that say which pixels are added up for a row or a column of the result, with ``antialias`` or of bytes."""
_LINEAR, _CUBIC = 2, 4
aten = torch.ops.aten


def _resized_bytes(args: Sequence[Any], result: Tensor, *, taps: int) -> int:
    """Both images with channels last, where the result is small, or has colors."""
    given: Tensor = args[0]
    if taps == _LINEAR and given.dtype is torch.uint8:
        return _separable_bytes(args, result, taps=taps)
    has_colors = taps == _LINEAR and given.shape[1] == _COLORS and torch.get_num_threads() == 1
    if not has_colors and sum(map(concrete_size, result.shape[-2:])) > _SMALL_IMAGE:
        return _taps_bytes(args, result, taps=taps)
    if given.is_contiguous(memory_format=torch.channels_last):
        return 0
    return tensor_bytes(given) + (tensor_bytes(result) if given.shape[1] > 1 else 0)


def _cubic_bytes(args: Sequence[Any], result: Tensor) -> int:
    if args[0].dtype is torch.uint8:
        return _separable_bytes(args, result, taps=_CUBIC)
    return _taps_bytes(args, result, taps=_CUBIC)


def _taps_bytes(_args: Sequence[Any], result: Tensor, *, taps: int) -> int:
    """For each row and column of the result, which ones of the operand are added up, and with which weights."""
    weight = max(result.element_size(), torch.float32.itemsize)
    return taps * sum(map(concrete_size, result.shape[2:])) * (torch.int64.itemsize + weight)


def _separable_bytes(args: Sequence[Any], result: Tensor, *, taps: int, antialias: bool = False) -> int:
    """One dimension after the other: what the first gives, and weights of those that change."""
    given: Tensor = args[0]
    batch, channels, rows, columns = map(concrete_size, given.shape)
    new_rows, new_columns = map(concrete_size, result.shape[-2:])
    is_bytes = given.dtype is torch.uint8
    weight = torch.float64.itemsize if is_bytes else given.element_size()

    def weights(old: int, new: int) -> int:
        # as many more pixels as the image gets smaller
        count = 2 * math.ceil(taps / 2 * max(1.0, old / new)) + 1 if antialias else taps
        return new * (count * weight + _INDICES * torch.int64.itemsize) if old != new else 0

    along, across = weights(columns, new_columns), weights(rows, new_rows)
    if is_bytes and channels <= _PIXEL:  # one image after the other
        is_as_wanted = channels >= _COLORS and given.is_contiguous(memory_format=torch.channels_last)
        pixel = _PIXEL if given.is_contiguous() or channels < _COLORS else channels
        is_copied = not given.is_contiguous() and not given.is_contiguous(memory_format=torch.channels_last)
        copied = tensor_bytes(given) // (batch if channels >= _COLORS else 1) if is_copied else 0
        places = rows * new_columns if along and across else 0
        places += 0 if is_as_wanted else rows * columns + new_rows * new_columns
        return along + across + copied + pixel * places
    between = batch * channels * rows * new_columns * given.element_size() if along and across else 0
    return between + max(along, across)


def _backward_bytes(args: Sequence[Any], result: Tensor) -> int:
    """The gradient, dense; a kernel that knows channels last makes the result twice."""
    gradient: Tensor = args[0]
    if gradient.is_contiguous(memory_format=_LAST[gradient.dim()]):
        return tensor_bytes(result)
    return dense_copies(args, result)


def _antialias_backward_bytes(args: Sequence[Any], result: Tensor) -> int:
    """Both."""
    made_twice = 0 if args[0].is_contiguous() else tensor_bytes(result)
    return dense_copies(args, result) + made_twice


_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

RESIZED: Mapping[Any, Callable[[Sequence[Any], Any], int]] = MappingProxyType(
    {
        **dict.fromkeys(
            (aten.upsample_bilinear2d.default, aten.upsample_bilinear2d.vec), partial(_resized_bytes, taps=_LINEAR)
        ),
        **dict.fromkeys(
            (
                *(aten.upsample_nearest2d.default, aten.upsample_nearest2d.vec),
                *(aten._upsample_nearest_exact2d.default, aten._upsample_nearest_exact2d.vec),
            ),
            partial(_resized_bytes, taps=1),
        ),
        **dict.fromkeys((aten.upsample_bicubic2d.default, aten.upsample_bicubic2d.vec), _cubic_bytes),
        **dict.fromkeys(
            (
                *(aten.upsample_trilinear3d.default, aten.upsample_trilinear3d.vec),
                *(aten.upsample_linear1d.default, aten.upsample_linear1d.vec),
            ),
            partial(_taps_bytes, taps=_LINEAR),
        ),
        **dict.fromkeys(
            (
                *(aten.upsample_nearest1d.default, aten.upsample_nearest1d.vec),
                *(aten.upsample_nearest3d.default, aten.upsample_nearest3d.vec),
                *(aten._upsample_nearest_exact1d.default, aten._upsample_nearest_exact3d.default),
            ),
            partial(_taps_bytes, taps=1),
        ),
        **dict.fromkeys(
            (aten._upsample_bilinear2d_aa.default, aten._upsample_bilinear2d_aa.vec),
            partial(_separable_bytes, taps=_LINEAR, antialias=True),
        ),
        **dict.fromkeys(
            (aten._upsample_bicubic2d_aa.default, aten._upsample_bicubic2d_aa.vec),
            partial(_separable_bytes, taps=_CUBIC, antialias=True),
        ),
        aten.upsample_nearest3d_backward.default: _backward_bytes,
        aten._upsample_nearest_exact3d_backward.default: _backward_bytes,
        aten._upsample_bilinear2d_aa_backward.default: _antialias_backward_bytes,
    }
)
