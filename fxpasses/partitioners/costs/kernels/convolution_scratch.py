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
_DILATED = (_BACKENDS.SlowDilated2d, _BACKENDS.SlowDilated3d)
_ONE_BY_ONE = (*_DILATED, _BACKENDS.SlowTranspose3d)
"""Kernels that unfold one sample after the other."""


def convolution_scratch_bytes(args: Sequence[Any], result: Tensor) -> int:
    """What a convolution needs beside its operands and its result.

    Args:
        args: Those of ``aten.convolution``.
        result: What it makes.

    Returns:
        Bytes; 0 on other devices than the CPU, of whose kernels nothing is known.
    """
    given, weight, bias, *settings = args
    if given.device.type != "cpu" or 0 in result.shape:
        return 0
    chosen, shapes = _chosen(given, weight, settings), Convolution.of(given, weight, settings, result)
    if chosen in _UNFOLDING:
        return _unfolding_copies(chosen, given, weight) + _unfolded(chosen, shapes, given, is_transposed=settings[3])
    if not _is_in_onednn(chosen, settings):
        return 0
    copies, has_bias = _copies(given, weight, given, weight), bias is not None
    if _has_channels_last(given, weight):
        return copies + (data_in_order(shapes, has_bias=has_bias) if settings[3] else forward_in_order(shapes))
    if settings[3]:
        return copies + data_in_blocks(shapes, has_bias=has_bias) - shapes.source_bytes
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
        columns = 0 if _needs_none_backward(chosen, shapes, mask) else _columns(chosen, shapes, is_backward=True)
        if mask[2] and shapes.is_half:  # the gradient of the bias is added up in floats
            in_floats = 2 * (_bytes(gradient) + _bias_bytes(gradient)) // shapes.groups
            columns = columns + in_floats if chosen == _BACKENDS.SlowTranspose3d else max(columns, in_floats)
        put_together = _bytes(given) + shapes.weight_bytes + _bias_bytes(gradient)
        of_groups = _group_by_group(chosen, shapes, columns, put_together, given, gradient)
        return of_groups + _unfolding_copies(chosen, given, weight, gradient)
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
    return shapes.is_pointwise and not shapes.is_strided and {*shapes.dilation} == {1}


def _needs_none_backward(chosen: Any, shapes: Convolution, mask: Sequence[bool]) -> bool:
    """Whether a backward unfolds nothing: one of images does it only for the gradient of the weight."""
    is_plain = chosen in (_BACKENDS.Slow2d, _BACKENDS.SlowTranspose2d)
    return (is_plain and _needs_no_columns(shapes)) or (chosen == _BACKENDS.Slow2d and not mask[1])


def _unfolded(chosen: Any, shapes: Convolution, given: Tensor, *, is_transposed: bool) -> int:
    """What torch's own kernels have; what one of them makes has at first the size of what it reads."""
    needs_none = chosen == _BACKENDS.Slow2d or (chosen == _BACKENDS.Slow3d and shapes.groups == 1)
    columns = 0 if needs_none and _needs_no_columns(shapes) else _columns(chosen, shapes)
    made = shapes.source_bytes if is_transposed else shapes.result_bytes
    if chosen == _BACKENDS.SlowTranspose3d:
        at_first = max(made, shapes.result_bytes)
        return max(shapes.result_bytes, _group_by_group(chosen, shapes, columns, at_first, given) + at_first - made)
    return _group_by_group(chosen, shapes, columns, made, given)


def _columns(chosen: Any, shapes: Convolution, *, is_backward: bool = False) -> int:
    """Columns of one sample or of all, of one group; of volumes of all groups."""
    is_single = chosen in _ONE_BY_ONE or (is_backward and chosen == _BACKENDS.SlowTranspose2d)
    ones = shapes.result[1] * shapes.element if chosen in _DILATED else 0
    if chosen == _BACKENDS.SlowTranspose3d:
        ones = math.prod(shapes.source[2:]) * shapes.element
    groups = shapes.groups if chosen == _BACKENDS.Slow3d else 1
    return (1 if is_single else shapes.result[0]) * groups * shapes.column_bytes + ones


def _group_by_group(chosen: Any, shapes: Convolution, columns: int, put_together: int, *operands: Tensor) -> int:
    """Parts of operands and columns of one group after the other, then what they made, which is put together."""
    if shapes.groups == 1 or chosen == _BACKENDS.Slow3d:
        return columns
    return max(put_together, columns + _part_bytes(shapes, *operands))


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
