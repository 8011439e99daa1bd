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

from fxpasses.partitioners.costs.kernels.convolution_shapes import (
    ALIGNMENT,
    LARGEST_VECTOR,
    Convolution,
    has_tiles,
    may_use_tiles,
)

__all__ = ["convolution_backward_scratch_bytes", "convolution_scratch_bytes"]

_IMAGE = 3
"""The backward of so many channels reads them as they are."""
_SMALL_KERNEL = 3
"""Up to so many places in a row, the backward of one channel a group has a kernel of its own."""
_WIDEST_HALF = 5
"""Up to so many places in a row, the gradient of the weight of few channels has a kernel in half precision."""
_LEAST_BLOCK = 8
"""The smallest block in which the gradient of a weight is made, by a kernel that does not do everything."""
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
        return copies + (_data_in_order(shapes, has_bias=True) if settings[3] else _forward_in_order(shapes))
    if settings[3]:
        return copies + _data(shapes, has_bias=True) - shapes.source_bytes
    return copies + _forward(shapes) - shapes.result_bytes


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
        in_order = _forward_in_order(shapes) + shapes.from_one() if settings[3] else _data_in_order(shapes)
        for_given = own + in_order if mask[0] else 0
        for_weight = own + _weights_in_order(shapes, bias) if mask[1] or mask[2] else 0
        if settings[3] and shapes.is_depthwise and shapes.is_volumes and shapes.vector == LARGEST_VECTOR:
            for_given += shapes.weight_of_channels(is_filled=True)
    else:
        for_given = (_forward(shapes) if settings[3] else _data(shapes)) if mask[0] else 0
        for_weight = own + _weights(shapes, bias) if mask[1] or mask[2] else 0
    return copies + max(0, max(for_given, for_weight) - own - weights - bias)


# ---------------------------------------------------------------------------------------------------------------------
# Kernels of oneDNN, with channels first: each says all that there is at one time, with what it makes
# ---------------------------------------------------------------------------------------------------------------------


def _forward(shapes: Convolution) -> int:
    """Operands are laid out; the result is laid out again in the end."""
    own, block = shapes.result_bytes, shapes.block
    if _prefers_order(shapes):
        weight = shapes.weight_in_order(shapes.made, shapes.channels)
        in_order = shapes.tables() + shapes.more_tables() + shapes.source_bytes + weight + own
        in_blocks = 0
        if shapes.is_depthwise:  # which has another kernel, where places lie apart
            laid_out = shapes.in_blocks(shapes.source, block) + shapes.in_blocks(shapes.result, block)
            in_blocks = laid_out + max(weight + shapes.bias_in_blocks(block), own)
        return max(in_order, in_blocks, 3 * own)
    if not block:
        block = shapes.vector // 2
        made = shapes.weight_in_blocks(block, keeps_channels=True) + shapes.in_blocks(shapes.result, block)
        return max(shapes.in_columns(own), made if shapes.made % block == 0 else 0)
    if shapes.is_depthwise and shapes.is_volumes:
        return max(shapes.source_bytes + shapes.weight_of_channels(is_filled=False) + own, 3 * own)
    is_image = _is_few(shapes)
    source = 0 if is_image else shapes.in_blocks(shapes.source, block)
    weight, result = shapes.weight_in_blocks(block, keeps_channels=is_image), shapes.in_blocks(shapes.result, block)
    while_made = source + weight + result + shapes.bias_in_blocks(block) + shapes.picked() + shapes.sample_in_floats()
    unfolded = shapes.in_columns(own) if shapes.reaches_beyond else 0
    rows = shapes.source_bytes + shapes.weight_bytes + shapes.in_rows() + own if shapes.is_one_row else 0
    return max(while_made, result + own, unfolded, rows)


def _data(shapes: Convolution, *, has_bias: bool = False) -> int:
    """The gradient of what is read, or what a transposed convolution makes, with a bias that is added at the end.

    A strided kernel wants channels last; what it makes is copied twice.
    """
    own = shapes.source_bytes
    before_bias = _added(shapes, has_bias=has_bias) + ALIGNMENT if has_bias else 0
    is_apart = _is_spread_apart(shapes)
    if _spreads_tiles(shapes):
        return max(shapes.spread_tiles() + shapes.result_bytes + own + before_bias, 3 * own)
    if _is_unusual(shapes) and not is_apart:
        return shapes.in_columns(own, before_bias=before_bias)
    if shapes.is_depthwise and shapes.dtype is torch.float16 and not shapes.is_strided:
        in_blocks = shapes.in_blocks(shapes.result, block := shapes.block) + shapes.in_blocks(shapes.source, block)
        in_blocks += before_bias + max(shapes.weight_in_blocks(block), own)
    else:
        in_blocks = 0
    if _spreads(shapes) or _prefers_order(shapes) or is_apart:
        weight = _spread_weight(shapes)
        spread = _spread_tables(shapes, is_added=has_bias)
        added = _added(shapes, has_bias=has_bias and (shapes.is_uneven or shapes.is_half))
        more = shapes.more_tables() if shapes.dtype is torch.float16 else 0
        if shapes.is_volumes and shapes.source[1] == shapes.result[1] == 1:
            block = shapes.vector
            in_blocks = shapes.in_blocks(shapes.source, block) + shapes.in_blocks(shapes.result, block)
            in_blocks += shapes.weight_in_blocks(block)
        return max(spread + more + added + shapes.result_bytes + weight + own, in_blocks, 3 * own)
    if not (block := shapes.block):
        is_wide = shapes.is_half or shapes.made > shapes.vector // 2
        spread = max(_spread_groups(shapes, own), 3 * own) if shapes.is_strided and is_wide else 0
        return max(spread, shapes.in_columns(own, before_bias=before_bias))
    result, source = shapes.in_blocks(shapes.result, block), shapes.in_blocks(shapes.source, block)
    before_bias = source + ALIGNMENT if has_bias else 0
    if has_bias and shapes.is_half:
        before_bias += source  # once more as it is added
    while_made = before_bias + result + shapes.weight_in_blocks(block) + source
    while_made += shapes.other_way_round().sample_in_floats()
    if has_bias and shapes.is_strided and shapes.groups > 1:
        while_made = max(while_made, 3 * own)
    if shapes.reaches_beyond:
        while_made = max(while_made, shapes.in_columns(own, before_bias=own + ALIGNMENT if has_bias else 0))
    is_uneven_row = shapes.is_uneven and len(shapes.kernel) == 1
    is_wide = shapes.groups > 1 and shapes.made > shapes.vector // 2
    if shapes.is_strided and ((shapes.is_half and shapes.is_depthwise) or is_uneven_row or is_wide):
        while_made = max(while_made, _spread_groups(shapes, own), 3 * own)
    return max(while_made, source + own)


def _spread_weight(shapes: Convolution) -> int:
    """The weight of what is spread; of one channel a group, in pairs, in bfloat16."""
    if _is_spread_apart(shapes):
        return shapes.groups * 2 * shapes.vector * shapes.kernel_bytes
    return shapes.weight_in_order(shapes.channels, shapes.made)


def _spread_tables(shapes: Convolution, *, is_added: bool = False) -> int:
    """Tables of a kernel that spreads; without a stride it is one the other way round."""
    if _has_tiles(shapes) and not shapes.is_strided:
        return max(each.tables() for each in (shapes, shapes.other_way_round()))
    return shapes.tables(is_spread=shapes.is_strided, is_added=is_added)


def _added(shapes: Convolution, *, has_bias: bool) -> int:
    """Where a bias is added to what a transposed convolution made: in half precision to floats."""
    return shapes.source_bytes * (2 if shapes.is_half else 1) if has_bias else 0


def _spread_groups(shapes: Convolution, own: int) -> int:
    """A strided kernel may be one that knows channels last also where channels of groups fill no vector."""
    return shapes.tables(is_spread=True) + shapes.result_bytes + shapes.weight_in_blocks(shapes.vector) + own


def _weights(shapes: Convolution, bias: int) -> int:
    """The gradients of the weight and of the bias, which are then laid out."""
    if _is_as_given(shapes):
        return 2 * (shapes.weight_bytes + bias)
    block, is_image = shapes.block, _is_few(shapes) and shapes.channels <= _IMAGE
    if not is_image and _is_few(shapes):
        block = shapes.vector // 2
    unfolded = 0
    if _unfolds_for_weight(shapes, block):
        unfolded = shapes.weight_bytes + max(shapes.sums_of_columns() + bias, shapes.weight_bytes + 2 * bias)
        # else oneDNN may have one that does
        may_be_in_blocks = shapes.is_dilated or shapes.is_volumes
        if shapes.is_depthwise or not (block and may_be_in_blocks):
            return unfolded
        if _has_tiles(shapes) and not shapes.reaches_beyond:
            return unfolded
    if _has_tiles(shapes):
        while_made = shapes.source_bytes + shapes.result_bytes + shapes.sums_in_tiles() + shapes.picked() + bias
        while_made += shapes.bias_in_blocks(shapes.vector)
        return max(unfolded, shapes.weight_in_tiles() + max(while_made, shapes.weight_bytes + 2 * bias))
    source = 0 if is_image else shapes.in_blocks(shapes.source, block)
    weight, result = shapes.weight_in_blocks(block, keeps_channels=is_image), shapes.in_blocks(shapes.result, block)
    while_made = source + result + shapes.picked() + shapes.bias_in_blocks(block) + bias
    if shapes.is_half and shapes.is_depthwise and bias:
        while_made += shapes.made * torch.float32.itemsize
    while_made += _sums_in_floats(shapes, weight) + shapes.sums_of_threads(weight)
    return max(unfolded, weight + max(while_made, shapes.weight_bytes + 2 * bias))


# ---------------------------------------------------------------------------------------------------------------------
# The same with channels last: beside what is made, which needs no other layout
# ---------------------------------------------------------------------------------------------------------------------


def _forward_in_order(shapes: Convolution) -> int:
    if shapes.is_depthwise and shapes.is_volumes and {*shapes.dilation} != {1} and shapes.dtype is not torch.float16:
        return max(shapes.weight_of_channels(is_filled=True), shapes.in_columns(0, is_last=True))
    has_tables = shapes.fills(shapes.channels) or _has_tiles(shapes) or shapes.dtype is torch.float16
    has_tables = has_tables or (shapes.vector != LARGEST_VECTOR and not shapes.is_depthwise)
    tables = shapes.tables() if has_tables else 0
    in_order = shapes.weight_in_order(shapes.made, shapes.channels) + tables + shapes.more_tables()
    unfolded = shapes.weight_bytes + shapes.in_columns(0, is_last=True) if shapes.reaches_beyond else 0
    if shapes.reaches_beyond and shapes.is_depthwise:
        unfolded = max(unfolded, shapes.weight_of_channels(is_filled=True))
    return max(in_order, unfolded, shapes.weight_bytes + shapes.in_rows() if shapes.is_one_row else 0)


def _data_in_order(shapes: Convolution, *, has_bias: bool = False) -> int:
    own = shapes.source_bytes
    if _spreads_tiles(shapes):
        return shapes.spread_tiles() + _added(shapes, has_bias=has_bias) + ALIGNMENT
    if shapes.is_dilated and shapes.is_strided:
        before_bias = _added(shapes, has_bias=has_bias) + (ALIGNMENT if has_bias else 0)
        return shapes.weight_bytes + shapes.in_columns(own, before_bias=before_bias, is_last=True) - own
    if shapes.is_depthwise and ({*shapes.dilation} != {1} or shapes.is_volumes) and not shapes.is_strided:
        added = _added(shapes, has_bias=has_bias)
        return shapes.weight_of_channels(is_filled=True) + (added + ALIGNMENT if has_bias else 0)
    if _is_spread_apart(shapes):
        added = _added(shapes, has_bias=has_bias) + ALIGNMENT
        return _spread_weight(shapes) + shapes.tables(is_spread=True, is_added=has_bias) + added
    if shapes.is_depthwise and shapes.is_volumes:
        before_bias = own + ALIGNMENT if has_bias else 0
        unfolded = shapes.in_columns(own, before_bias=before_bias, is_last=True) - own
        return max(shapes.weight_of_channels(is_filled=True) + before_bias, unfolded)
    weight = shapes.weight_in_order(shapes.channels, shapes.made)
    if shapes.fills(shapes.made):
        is_apart = shapes.is_strided and (shapes.is_uneven or shapes.is_half)
        is_apart = is_apart or (shapes.dtype is torch.bfloat16 and shapes.groups > 1 and not _has_tiles(shapes))
        added = _added(shapes, has_bias=has_bias and is_apart)
        more = shapes.more_tables() if shapes.dtype is torch.float16 else 0
        return weight + added + _spread_tables(shapes, is_added=has_bias) + more
    is_wide = shapes.is_half or (shapes.made > shapes.vector // 2 and not shapes.block)
    has_tables = (shapes.is_strided and is_wide) or _has_tiles(shapes)
    spread = _spread_tables(shapes) if has_tables else 0
    is_small = shapes.vector != LARGEST_VECTOR and not shapes.is_depthwise
    if (shapes.is_half or is_small) and not has_tables:
        spread = shapes.tables() + shapes.more_tables()
    before_bias = _added(shapes, has_bias=has_bias) + ALIGNMENT if has_bias else 0
    unfolded = 0
    if not shapes.is_depthwise and not shapes.block:
        unfolded = shapes.weight_bytes + shapes.in_columns(own, before_bias=before_bias, is_last=True) - own
    return max(unfolded, weight + spread + before_bias)


def _weights_in_order(shapes: Convolution, bias: int) -> int:
    """The gradient of the weight is laid out with channels first, then with channels last.

    One channel a group is no special case for a kernel of more than three places in a row: each group then has a whole
    block of what goes in and of what comes out.
    """
    vector = shapes.vector
    if _is_as_given(shapes):
        return 3 * shapes.weight_bytes + 2 * bias
    is_lacking = shapes.is_depthwise and shapes.is_small and shapes.vector != LARGEST_VECTOR
    unfolds = shapes.is_dilated and (shapes.is_strided or (shapes.is_volumes and shapes.is_padded))
    if shapes.vector != LARGEST_VECTOR:
        unfolds = unfolds or (shapes.is_dilated and shapes.groups > 1) or (shapes.is_depthwise and shapes.is_volumes)
    if unfolds or is_lacking:
        sums = shapes.sums_of_columns(is_last=True)
        return 2 * shapes.weight_bytes + max(sums + bias, shapes.weight_bytes + 2 * bias)
    unfolded = 0
    if shapes.reaches_beyond or (shapes.is_volumes and (shapes.is_dilated or vector != LARGEST_VECTOR)):
        unfolded = 2 * shapes.weight_bytes + shapes.sums_of_columns(is_last=True) + bias
    if shapes.is_depthwise:
        has_own = _has_own_kernel(shapes)
        is_filled = max(shapes.kernel) > _SMALL_KERNEL or not has_own
        weight = shapes.weight_of_channels(is_filled=is_filled)
    else:
        is_filled = False
        weight = shapes.weight_in_blocks(vector, keeps_channels=_is_few(shapes))
    sums = _sums_in_floats(shapes, weight) + shapes.sums_of_threads(weight)
    if _has_tiles(shapes):
        weight, sums = shapes.weight_in_tiles(), shapes.sums_in_tiles()
    while_made = shapes.bias_in_blocks(vector, is_filled=is_filled) + shapes.picked() + bias + sums
    return max(unfolded, weight + max(while_made, 2 * shapes.weight_bytes + 2 * bias))


# ---------------------------------------------------------------------------------------------------------------------
# Which kernel
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


def _is_few(shapes: Convolution) -> bool:
    """Whether the channels stay as they are, as they fill no vector; smaller processors know images only."""
    few = shapes.vector - 1 if shapes.vector == LARGEST_VECTOR else _IMAGE
    return shapes.groups == 1 and shapes.channels <= few and not shapes.is_pointwise


def _spreads(shapes: Convolution) -> bool:
    return shapes.is_strided and shapes.fills(shapes.made)


def _is_unusual(shapes: Convolution) -> bool:
    """What no kernel does backward but the one that unfolds what is read."""
    if shapes.is_depthwise and (shapes.is_volumes or shapes.is_dilated):
        return True
    return shapes.is_dilated and shapes.is_strided


def _is_spread_apart(shapes: Convolution) -> bool:
    """Whether one channel a group is spread, in bfloat16."""
    is_known = shapes.dtype is torch.bfloat16 and shapes.vector == LARGEST_VECTOR
    return is_known and shapes.is_depthwise and shapes.is_strided and not shapes.is_dilated


def _spreads_tiles(shapes: Convolution) -> bool:
    """Whether a strided and dilated kernel has tiles: of images, where channels of groups fill vectors."""
    fills = shapes.groups == 1 or shapes.channels % shapes.vector == shapes.made % shapes.vector == 0
    return _has_tiles(shapes) and shapes.is_strided and shapes.is_dilated and not shapes.is_volumes and fills


def _unfolds_for_weight(shapes: Convolution, block: int) -> bool:
    """Whether the same is true of the gradient of the weight."""
    if _has_tiles(shapes):
        is_apart = shapes.is_strided or (shapes.is_volumes and shapes.is_padded) or shapes.reaches_beyond
        return shapes.is_dilated and is_apart
    if _is_unusual(shapes) or (shapes.is_dilated and shapes.is_volumes):
        return True
    if shapes.is_depthwise:
        return max(shapes.kernel) > _SMALL_KERNEL or not _has_own_kernel(shapes)
    if shapes.is_half and (shapes.groups > 1 or max(shapes.kernel) > _WIDEST_HALF) and block <= _LEAST_BLOCK:
        return True
    if shapes.reaches_beyond:
        return True
    if block > _LEAST_BLOCK:
        return False
    return block < _LEAST_BLOCK or shapes.is_dilated or shapes.is_small or shapes.is_volumes


def _prefers_order(shapes: Convolution) -> bool:
    """Whether channels come last whatever is given: half precision on processors that compute in it, but for tiles.

    One channel a group fills none.
    """
    return shapes.dtype is torch.float16 or _has_tiles(shapes)


def _has_tiles(shapes: Convolution) -> bool:
    """Whether it is computed with tiles, as all are but those of one channel a group."""
    return has_tiles(shapes.dtype) and not shapes.is_depthwise


def _has_own_kernel(shapes: Convolution) -> bool:
    """Whether one channel a group of images may be a special case: where no place is left out between two kernels."""
    is_apart = {*shapes.dilation} != {1} or any(s > k for s, k in zip(shapes.stride, shapes.kernel, strict=True))
    return shapes.starts_inside and not (shapes.is_volumes or is_apart)


def _is_as_given(shapes: Convolution) -> bool:
    """Whether the gradient of the weight is made by a kernel that takes any layout: there is no other for the type."""
    return shapes.dtype is torch.float16 and not may_use_tiles()


def _sums_in_floats(shapes: Convolution, weight: int) -> int:
    """In bfloat16 the gradient of the weight is added up in floats, most times from samples that are turned."""
    if shapes.dtype is not torch.bfloat16:
        return 0
    is_small = shapes.is_depthwise and max(shapes.kernel) <= _SMALL_KERNEL
    is_small = is_small and _has_own_kernel(shapes)
    threads = torch.get_num_threads() if is_small else shapes.threads_of_sums()
    sums = threads * (weight * torch.float32.itemsize // shapes.element + ALIGNMENT * 4)
    return sums + (0 if is_small else shapes.turned_samples())


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
