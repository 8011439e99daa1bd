"""What convolutions on the CPU need for themselves while they run: operands in oneDNN's layout, unfolded columns.

The dispatcher does not see it: kernels ask the allocator. Which kernel runs is what torch says for this process: it
depends on types and shapes, on the number of threads, and on the processor. oneDNN then takes one of its own; where
that depends on what a processor can do, the hungrier one counts.

Source: oneDNN's developer guide, "Understanding Memory Formats"; sizes agree with what torch's allocator was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from fxpasses.partitioners.costs.kernels.convolution_shapes import Convolution
from fxpasses.partitioners.costs.kernels.convolution_tables import from_one
from fxpasses.partitioners.costs.kernels.onednn_convolutions import (
    data_in_blocks,
    data_in_order,
    forward_in_blocks,
    forward_in_order,
    weights_in_blocks,
    weights_in_order,
)
from fxpasses.partitioners.costs.kernels.processor_blocks import LARGEST_VECTOR

__all__ = ["convolution_backward_scratch_bytes", "convolution_scratch_bytes"]

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_BACKENDS: Any = torch._C._ConvBackend  # type: ignore[attr-defined]  # torch does not say
_UNFOLDING = (
    *(_BACKENDS.Slow2d, _BACKENDS.Slow3d, _BACKENDS.SlowDilated2d, _BACKENDS.SlowDilated3d),
    *(_BACKENDS.SlowTranspose2d, _BACKENDS.SlowTranspose3d),
)
_ONE_BY_ONE = (_BACKENDS.SlowDilated2d, _BACKENDS.SlowDilated3d)
"""Kernels that unfold one sample after the other."""


def convolution_scratch_bytes(args: Sequence[Any], result: Tensor) -> int:
    """What a convolution needs beside its operands and its result.

    Args:
        args: Those of ``aten.convolution``.
        result: What it makes.

    Returns:
        Bytes; 0 on other devices than the CPU, of whose kernels nothing is known.
    """
    given, weight, _bias, *settings = args
    if given.device.type != "cpu" or 0 in result.shape:
        return 0
    chosen, shapes = _chosen(given, weight, settings), Convolution.of(given, weight, settings, result)
    if chosen in _UNFOLDING:
        copies = _unfolding_copies(chosen, given, weight)
        if chosen in (_BACKENDS.Slow2d, _BACKENDS.Slow3d) and _needs_no_columns(shapes):
            of_groups = shapes.source_bytes
            if chosen == _BACKENDS.Slow2d:
                of_groups = max(shapes.result_bytes, _part_bytes(shapes, given))
            return copies + (of_groups if shapes.groups > 1 else 0)
        return copies + _columns(chosen, shapes, settings)
    if not _is_in_onednn(chosen, settings):
        return 0
    copies = _copies(given, weight, given, weight)
    if _has_channels_last(given, weight):
        return copies + (data_in_order(shapes, has_bias=True) if settings[3] else forward_in_order(shapes))
    if settings[3]:
        return copies + data_in_blocks(shapes, has_bias=True) - shapes.source_bytes
    return copies + forward_in_blocks(shapes) - shapes.result_bytes


def convolution_backward_scratch_bytes(args: Sequence[Any], _result: Any) -> int:
    """The same of its backward, beside the gradients: ``args`` are those of ``aten.convolution_backward``.

    One gradient is made after the other: that of the input is there while that of the weight is made.
    """
    gradient, given, weight, _biases, *settings, mask = args
    if given.device.type != "cpu" or 0 in gradient.shape:
        return 0
    chosen, shapes = _chosen(given, weight, settings), Convolution.of(given, weight, settings, gradient)
    if chosen in _UNFOLDING:
        is_plain = chosen in (_BACKENDS.Slow2d, _BACKENDS.SlowTranspose2d)
        needs_none = (is_plain or shapes.groups > 1) and _needs_no_columns(shapes)
        columns = 0 if needs_none else _columns(chosen, shapes, settings)
        of_groups = _bytes(given) + shapes.weight_bytes + _bias_bytes(gradient) if shapes.groups > 1 else 0
        of_groups = max(of_groups, _part_bytes(shapes, given, gradient))
        return max(columns, of_groups) + _unfolding_copies(chosen, given, weight, gradient)
    if not _is_in_onednn(chosen, settings):
        return 0
    copies = _copies(given, weight, given, weight, gradient)
    own, bias = _kept_bytes(given, mask[0]), _bias_bytes(gradient) if mask[2] else 0
    weights = shapes.weight_bytes if mask[1] else 0
    if _has_channels_last(given, weight):
        in_order = forward_in_order(shapes) + from_one(shapes) if settings[3] else data_in_order(shapes)
        for_given = own + in_order if mask[0] else 0
        for_weight = own + weights_in_order(shapes, bias) if mask[1] or mask[2] else 0
        if settings[3] and shapes.is_depthwise and shapes.is_volumes and shapes.vector == LARGEST_VECTOR:
            for_given += shapes.weight_of_channels(is_filled=True)
    else:
        for_given = (forward_in_blocks(shapes) if settings[3] else data_in_blocks(shapes)) if mask[0] else 0
        for_weight = own + weights_in_blocks(shapes, bias) if mask[1] or mask[2] else 0
    return copies + max(0, max(for_given, for_weight) - own - weights - bias)


# ---------------------------------------------------------------------------------------------------------------------
# Kernels of torch
# ---------------------------------------------------------------------------------------------------------------------


def _chosen(given: Tensor, weight: Tensor, settings: Sequence[Any]) -> Any:
    return torch._C._select_conv_backend(given, weight, None, *settings)


def _is_in_onednn(chosen: Any, settings: Sequence[Any]) -> bool:
    return chosen == _BACKENDS.Mkldnn or bool(settings[3])  # torch has no name for the transposed one


def _needs_no_columns(shapes: Convolution) -> bool:
    return shapes.is_pointwise and not shapes.is_strided


def _columns(chosen: Any, shapes: Convolution, settings: Sequence[Any]) -> int:
    """What torch's own kernels have: columns of one sample or of all, for one group after the other."""
    is_single = chosen in _ONE_BY_ONE
    ones = shapes.result[1] * shapes.element if is_single else 0
    if chosen == _BACKENDS.SlowTranspose3d:
        ones = math.prod(shapes.source[2:]) * shapes.element
    made = shapes.source_bytes if settings[3] else shapes.result_bytes
    put_together = made if shapes.groups > 1 else 0
    if shapes.groups > 1 and settings[3]:  # a part of what is read, and what is made of it
        put_together += made + shapes.result_bytes // shapes.groups
    columns = (1 if is_single else shapes.result[0]) * shapes.column_bytes + put_together + ones
    if chosen == _BACKENDS.SlowTranspose3d and shapes.groups == 1:  # what is made has at first the size of what is read
        return max(shapes.result_bytes, columns + max(0, shapes.result_bytes - made))
    return columns


def _part_bytes(shapes: Convolution, *operands: Tensor) -> int:
    """What one group reads of several samples, or of channels that come last, dense."""
    is_apart = shapes.source[0] > 1 or not all(each.is_contiguous() for each in operands)
    is_copied = shapes.groups > 1 and is_apart
    return sum(map(_bytes, operands)) // shapes.groups if is_copied else 0


# ---------------------------------------------------------------------------------------------------------------------
# Copies that torch makes before
# ---------------------------------------------------------------------------------------------------------------------


def _copies(given: Tensor, weight: Tensor, *operands: Tensor) -> int:
    """Bytes of the operands that are not laid out as torch wants all of them to be."""
    last = _FORMATS[given.dim()] if _has_channels_last(given, weight) else torch.contiguous_format
    return sum(_bytes(each) for each in operands if not each.is_contiguous(memory_format=last))


def _unfolding_copies(chosen: Any, given: Tensor, weight: Tensor, *gradients: Tensor) -> int:
    """Torch's own kernels want channels first, but for those of images."""
    if not _has_channels_last(given, weight):
        return _copies(given, weight, given, weight, *gradients)
    if chosen in (_BACKENDS.Slow2d, _BACKENDS.SlowTranspose2d, _BACKENDS.SlowDilated2d):
        return _copies(given, weight, given, weight, *gradients)
    return sum(_bytes(each) for each in (given, weight, *gradients) if not each.is_contiguous())


def _has_channels_last(*operands: Tensor) -> bool:
    return any(suggest_memory_format(each) == _FORMATS.get(each.dim()) for each in operands)


def _kept_bytes(given: Tensor, is_wanted: bool) -> int:
    return _bytes(given) if is_wanted else 0


def _bias_bytes(gradient: Tensor) -> int:
    return int(gradient.shape[1]) * gradient.element_size()


def _bytes(tensor: Tensor) -> int:
    return math.prod(map(int, tensor.shape)) * tensor.element_size()
