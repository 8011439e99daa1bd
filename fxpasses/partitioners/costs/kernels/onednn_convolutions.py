"""What oneDNN's kernels for convolutions have at one time, with channels first and with channels last.

Which kernel that is depends on types and shapes, on the number of threads, and on the processor. Where it depends on
more, the hungrier one counts.

Source: oneDNN's developer guide, "Understanding Memory Formats"; sizes agree with what torch's allocator was asked for.
"""

from __future__ import annotations

import torch

from fxpasses.partitioners.costs.kernels.convolution_columns import in_columns, in_rows, sums_of_columns
from fxpasses.partitioners.costs.kernels.convolution_kernels import (
    has_few_either_way,
    has_own_kernel,
    has_short_rest,
    is_as_given,
    is_few,
    is_spread_apart,
    is_unusual,
    prefers_order,
    spreads,
    spreads_tiles,
    unfolds_for_weight,
)
from fxpasses.partitioners.costs.kernels.convolution_shapes import Convolution
from fxpasses.partitioners.costs.kernels.convolution_sums import sums_in_floats, sums_of_threads
from fxpasses.partitioners.costs.kernels.convolution_tables import (
    few_table_bytes,
    more_table_bytes,
    one_channel_bytes,
    picked_bytes,
    sample_in_floats,
    table_bytes,
)
from fxpasses.partitioners.costs.kernels.convolution_tiles import (
    spread_tiles,
    spreads_evenly,
    sums_in_tiles,
    weight_in_tiles,
)
from fxpasses.partitioners.costs.kernels.processor_blocks import ALIGNMENT, LARGEST_VECTOR, round_up

__all__ = [
    "data_in_blocks",
    "data_in_order",
    "forward_in_blocks",
    "forward_in_order",
    "weights_in_blocks",
    "weights_in_order",
]

_IMAGE = 3
"""The backward of so many channels reads them as they are."""


# ---------------------------------------------------------------------------------------------------------------------
# With channels first: each says all that there is at one time, with what it makes
# ---------------------------------------------------------------------------------------------------------------------


def forward_in_blocks(shapes: Convolution) -> int:
    """Operands are laid out; the result is laid out again in the end."""
    own, block = shapes.result_bytes, shapes.block
    if prefers_order(shapes):
        weight = shapes.weight_in_order(shapes.made, shapes.channels)
        in_order = table_bytes(shapes) + more_table_bytes(shapes) + shapes.source_bytes + weight + own
        in_blocks = 0
        if shapes.is_depthwise:  # which has another kernel, where places lie apart
            laid_out = shapes.in_blocks(shapes.source, block) + shapes.in_blocks(shapes.result, block)
            in_blocks = laid_out + max(weight + shapes.bias_in_blocks(block), own)
        return max(in_order, in_blocks, 3 * own)
    if not block:
        block = shapes.vector // 2
        made = shapes.weight_in_blocks(block, keeps_channels=True) + shapes.in_blocks(shapes.result, block)
        return max(in_columns(shapes, own), made if shapes.made % block == 0 else 0)
    unfolded = in_columns(shapes, own) if shapes.reaches_beyond else 0
    if shapes.is_wide:
        unfolded = in_columns(shapes, own, is_in_cache=True)
    if shapes.is_depthwise and shapes.is_volumes:
        return max(shapes.source_bytes + shapes.weight_of_channels(is_filled=False) + own, 3 * own, unfolded)
    is_image = is_few(shapes)
    source = 0 if is_image else shapes.in_blocks(shapes.source, block)
    weight, result = shapes.weight_in_blocks(block, keeps_channels=is_image), shapes.in_blocks(shapes.result, block)
    while_made = (
        source + weight + result + shapes.bias_in_blocks(block) + picked_bytes(shapes) + sample_in_floats(shapes)
    )
    rows = shapes.source_bytes + shapes.weight_bytes + in_rows(shapes) + own if shapes.is_one_row else 0
    return max(while_made, result + own, unfolded, rows)


def data_in_blocks(shapes: Convolution, *, has_bias: bool = False) -> int:
    """The gradient of what is read, or what a transposed convolution makes, with a bias that is added at the end.

    A strided kernel wants channels last; what it makes is copied twice.
    """
    own = shapes.source_bytes
    before_bias = _added(shapes, has_bias=has_bias) + ALIGNMENT if has_bias else 0
    is_apart = is_spread_apart(shapes)
    if spreads_tiles(shapes):
        return max(spread_tiles(shapes) + shapes.result_bytes + own + before_bias, 3 * own)
    if is_unusual(shapes) and not is_apart:
        return max(in_columns(shapes, own, before_bias=before_bias), _data_of_halves(shapes) + before_bias)
    if shapes.is_depthwise and shapes.dtype is torch.float16 and not shapes.is_strided:
        in_blocks = shapes.in_blocks(shapes.result, block := shapes.block) + shapes.in_blocks(shapes.source, block)
        in_blocks += before_bias + max(shapes.weight_in_blocks(block), own)
    else:
        in_blocks = 0
    if has_short_rest(shapes, shapes.block):
        in_blocks = in_columns(shapes, own, before_bias=before_bias)
    if spreads(shapes) or prefers_order(shapes) or is_apart:
        weight = _spread_weight(shapes)
        spread = _spread_tables(shapes, is_added=has_bias)
        added = _added(shapes, has_bias=has_bias and (shapes.is_uneven or shapes.is_half))
        more = more_table_bytes(shapes) if shapes.dtype is torch.float16 else 0
        if shapes.is_volumes and (shapes.reaches_beyond or shapes.source[1] == shapes.result[1] == 1):
            block = shapes.vector
            laid_out = shapes.in_blocks(shapes.source, block) + shapes.in_blocks(shapes.result, block)
            in_blocks = max(in_blocks, laid_out + shapes.weight_in_blocks(block))
        return max(spread + more + added + shapes.result_bytes + weight + own, in_blocks, 3 * own)
    if not (block := shapes.block):
        is_wide = shapes.is_half or shapes.made > shapes.vector // 2
        is_added = has_bias and shapes.is_uneven
        spread = 0
        if shapes.is_strided and is_wide:
            added = _added(shapes, has_bias=is_added)
            spread = max(_spread_groups(shapes, own, is_added=is_added) + added, 3 * own)
        return max(spread, in_columns(shapes, own, before_bias=before_bias))
    result, source = shapes.in_blocks(shapes.result, block), shapes.in_blocks(shapes.source, block)
    before_bias = source + ALIGNMENT if has_bias else 0
    if has_bias and shapes.is_half:
        before_bias += source  # once more as it is added
    while_made = before_bias + result + shapes.weight_in_blocks(block) + source
    while_made += sample_in_floats(shapes.other_way_round())
    if has_bias and shapes.is_strided and shapes.groups > 1:
        while_made = max(while_made, 3 * own)
    if shapes.reaches_beyond or shapes.is_wide:
        while_made = max(while_made, in_columns(shapes, own, before_bias=own + ALIGNMENT if has_bias else 0))
    is_uneven_row = shapes.is_uneven and len(shapes.kernel) == 1
    is_wide = shapes.groups > 1 and shapes.made > shapes.vector // 2
    if shapes.is_strided and ((shapes.is_half and shapes.is_depthwise) or is_uneven_row or is_wide):
        while_made = max(while_made, _spread_groups(shapes, own), 3 * own)
    return max(while_made, source + own, in_blocks)


def _data_of_halves(shapes: Convolution) -> int:
    """The same of one channel a group in float16, of which some kernels know what is unusual in other types."""
    if shapes.dtype is not torch.float16 or not shapes.is_depthwise:
        return 0
    tables = table_bytes(shapes, is_spread=shapes.is_strided) + more_table_bytes(shapes)
    return shapes.source_bytes + shapes.result_bytes + shapes.weight_of_channels(is_filled=False) + tables


def _spread_weight(shapes: Convolution) -> int:
    """The weight of what is spread; of one channel a group, in pairs, in bfloat16; of patches, in whole tiles."""
    if is_spread_apart(shapes):
        return shapes.groups * 2 * shapes.vector * shapes.kernel_bytes
    if shapes.has_tiles and shapes.is_patches:
        return shapes.weight_in_order(shapes.channels, shapes.made, is_padded=True)
    return _weight_in_order(shapes, shapes.channels, shapes.made)


def _spread_tables(shapes: Convolution, *, is_added: bool = False) -> int:
    """Tables of a kernel that spreads; without a stride it is one the other way round."""
    if shapes.has_tiles and not shapes.is_strided:
        return max(table_bytes(each) for each in (shapes, shapes.other_way_round()))
    return table_bytes(shapes, is_spread=shapes.is_strided, is_added=is_added)


def _added(shapes: Convolution, *, has_bias: bool) -> int:
    """Where a bias is added to what a transposed convolution made: in half precision to floats.

    What fills tiles is made with it, but for what a stride leaves over.
    """
    is_whole = (shapes.is_patches and shapes.groups == 1) or spreads_evenly(shapes)
    if not has_bias or (shapes.has_tiles and is_whole):
        return 0
    return shapes.source_bytes * (2 if shapes.is_half else 1)


def _spread_groups(shapes: Convolution, own: int, *, is_added: bool = False) -> int:
    """A strided kernel may be one that knows channels last also where channels of groups fill no vector."""
    return (
        table_bytes(shapes, is_spread=True, is_added=is_added)
        + shapes.result_bytes
        + shapes.weight_in_blocks(shapes.vector)
        + own
    )


def weights_in_blocks(shapes: Convolution, bias: int) -> int:
    """The gradients of the weight and of the bias, which are then laid out."""
    if is_as_given(shapes):
        return 2 * (shapes.weight_bytes + bias)
    block, is_image = shapes.block, is_few(shapes) and shapes.channels <= _IMAGE
    if not is_image and is_few(shapes):
        block = shapes.vector // 2
    unfolded = 0
    if (is_unfolded := unfolds_for_weight(shapes, block)) or has_few_either_way(shapes):
        unfolded = shapes.weight_bytes + max(sums_of_columns(shapes) + bias, shapes.weight_bytes + 2 * bias)
    if is_unfolded:  # else oneDNN may have one that does
        may_be_in_blocks = shapes.is_dilated or shapes.is_volumes or shapes.reaches_beyond or shapes.grows
        may_be_in_blocks = may_be_in_blocks or shapes.is_too_wide
        if shapes.is_depthwise or not (shapes.has_tiles or (block and may_be_in_blocks)):
            return unfolded
        if shapes.has_tiles and not (shapes.reaches_beyond or shapes.grows or shapes.is_volumes):
            return unfolded
    if shapes.has_tiles:
        while_made = shapes.source_bytes + shapes.result_bytes + sums_in_tiles(shapes) + bias
        while_made += shapes.bias_in_blocks(shapes.vector)
        return max(unfolded, weight_in_tiles(shapes) + max(while_made, shapes.weight_bytes + 2 * bias))
    source = 0 if is_image else shapes.in_blocks(shapes.source, block)
    weight, result = shapes.weight_in_blocks(block, keeps_channels=is_image), shapes.in_blocks(shapes.result, block)
    while_made = source + result + picked_bytes(shapes) + shapes.bias_in_blocks(block) + bias
    if shapes.is_half and shapes.is_depthwise and bias:
        while_made += shapes.made * torch.float32.itemsize
    keeps_channels = is_image and shapes.channels > 1 and shapes.made % block == 0 and not shapes.is_volumes
    while_made += sums_in_floats(shapes, weight, keeps_channels=keeps_channels) + sums_of_threads(shapes, weight)
    return max(unfolded, weight + max(while_made, shapes.weight_bytes + 2 * bias))


# ---------------------------------------------------------------------------------------------------------------------
# The same with channels last: beside what is made, which needs no other layout
# ---------------------------------------------------------------------------------------------------------------------


def forward_in_order(shapes: Convolution) -> int:
    """The weight is laid out; kernels have tables."""
    if shapes.is_depthwise and shapes.is_volumes and {*shapes.dilation} != {1} and shapes.dtype is not torch.float16:
        return max(shapes.weight_of_channels(is_filled=True), in_columns(shapes, 0, is_last=True))
    has_tables = shapes.fills(shapes.channels) or shapes.has_tiles or shapes.dtype is torch.float16
    has_tables = has_tables or (shapes.vector != LARGEST_VECTOR and not shapes.is_depthwise)
    has_tables = has_tables or (shapes.reaches_beyond and not shapes.is_depthwise)
    tables = table_bytes(shapes) if has_tables else 0
    in_order = _weight_in_order(shapes, shapes.made, shapes.channels) + tables + more_table_bytes(shapes)
    is_beyond = shapes.reaches_beyond and not shapes.is_bordered
    unfolded = shapes.weight_bytes + in_columns(shapes, 0, is_last=True) if is_beyond else 0
    if is_beyond and shapes.is_depthwise:
        unfolded = max(unfolded, shapes.weight_of_channels(is_filled=True))
    of_one = shapes.weight_in_order(shapes.made, shapes.channels) + one_channel_bytes(shapes)
    return max(in_order, of_one, unfolded, shapes.weight_bytes + in_rows(shapes) if shapes.is_one_row else 0)


def data_in_order(shapes: Convolution, *, has_bias: bool = False) -> int:
    """The same of the gradient of what is read, or what a transposed convolution makes; a strided kernel spreads."""
    own = shapes.source_bytes
    if spreads_tiles(shapes):
        return spread_tiles(shapes) + _added(shapes, has_bias=has_bias) + ALIGNMENT
    if shapes.is_dilated and shapes.is_strided:
        before_bias = _added(shapes, has_bias=has_bias) + (ALIGNMENT if has_bias else 0)
        return shapes.weight_bytes + in_columns(shapes, own, before_bias=before_bias, is_last=True) - own
    if shapes.is_depthwise and ({*shapes.dilation} != {1} or shapes.is_volumes) and not shapes.is_strided:
        added = _added(shapes, has_bias=has_bias)
        return shapes.weight_of_channels(is_filled=True) + (added + ALIGNMENT if has_bias else 0)
    if is_spread_apart(shapes):
        added = _added(shapes, has_bias=has_bias) + ALIGNMENT
        return _spread_weight(shapes) + table_bytes(shapes, is_spread=True, is_added=has_bias) + added
    if shapes.is_depthwise and shapes.is_volumes:
        before_bias = own + ALIGNMENT if has_bias else 0
        unfolded = in_columns(shapes, own, before_bias=before_bias, is_last=True) - own
        return max(shapes.weight_of_channels(is_filled=True) + before_bias, unfolded)
    weight = _spread_weight(shapes)
    before_bias = _added(shapes, has_bias=has_bias) + ALIGNMENT if has_bias else 0
    unfolded = 0
    do_few_know = shapes.reaches_beyond or shapes.is_too_wide
    do_few_know = do_few_know or has_short_rest(shapes, shapes.vector)
    if not shapes.is_depthwise and (do_few_know or not (shapes.fills(shapes.made) or shapes.block)):
        unfolded = shapes.weight_bytes + in_columns(shapes, own, before_bias=before_bias, is_last=True) - own
    if shapes.fills(shapes.made):
        is_apart = shapes.is_strided and (shapes.is_uneven or shapes.is_half)
        is_apart = is_apart or (shapes.dtype is torch.bfloat16 and shapes.groups > 1 and not shapes.has_tiles)
        added = _added(shapes, has_bias=has_bias and is_apart)
        more = more_table_bytes(shapes) if shapes.dtype is torch.float16 else 0
        return max(unfolded, weight + added + _spread_tables(shapes, is_added=has_bias) + more)
    is_wide = shapes.is_half or (shapes.made > shapes.vector // 2 and not shapes.block)
    has_tables = (shapes.is_strided and is_wide) or shapes.has_tiles
    spread = _spread_tables(shapes, is_added=has_bias) if has_tables else 0
    is_small = shapes.vector != LARGEST_VECTOR and not shapes.is_depthwise
    if (shapes.is_half or is_small) and not has_tables:
        spread = table_bytes(shapes) + more_table_bytes(shapes)
    return max(unfolded, weight + spread + before_bias, _in_half_vectors(shapes))


def _in_half_vectors(shapes: Convolution) -> int:
    """The weight and tables of a kernel in floats for groups of few channels, which fill half a vector."""
    if shapes.is_half or shapes.is_depthwise or shapes.vector != LARGEST_VECTOR:
        return 0
    channels = round_up(shapes.channels, shapes.vector // 2)
    return shapes.groups * channels * shapes.made * shapes.kernel_bytes + few_table_bytes(shapes)


def _weight_in_order(shapes: Convolution, along: int, other: int) -> int:
    """The weight for a kernel that knows channels last, or for one with blocks, where few know what it does."""
    in_blocks = shapes.weight_in_blocks(shapes.vector) if shapes.reaches_beyond else 0
    return max(shapes.weight_in_order(along, other), in_blocks)


def weights_in_order(shapes: Convolution, bias: int) -> int:
    """The gradient of the weight is laid out with channels first, then with channels last.

    One channel a group is no special case for a kernel of more than three places in a row: each group then has a whole
    block of what goes in and of what comes out.
    """
    vector = shapes.vector
    if is_as_given(shapes):
        return 3 * shapes.weight_bytes + 2 * bias
    is_lacking = shapes.is_depthwise and shapes.is_small and shapes.vector != LARGEST_VECTOR
    unfolds = shapes.is_dilated and (shapes.is_strided or (shapes.is_volumes and shapes.is_padded))
    if shapes.vector != LARGEST_VECTOR:
        unfolds = unfolds or (shapes.is_dilated and shapes.groups > 1) or (shapes.is_depthwise and shapes.is_volumes)
    may_have_tiles = shapes.has_tiles and shapes.is_volumes and not shapes.is_strided
    if (unfolds and not may_have_tiles) or is_lacking or shapes.is_bordered:
        sums = sums_of_columns(shapes, is_last=True)
        return 2 * shapes.weight_bytes + max(sums + bias, shapes.weight_bytes + 2 * bias)
    unfolded = 0
    do_few_know = shapes.reaches_beyond or shapes.is_too_wide or (shapes.dtype is torch.bfloat16 and shapes.grows)
    if do_few_know or (shapes.is_volumes and (shapes.is_dilated or (shapes.is_padded and vector != LARGEST_VECTOR))):
        unfolded = 2 * shapes.weight_bytes + sums_of_columns(shapes, is_last=True) + bias
    if shapes.is_depthwise:
        is_filled = not has_own_kernel(shapes)
        weight = shapes.weight_of_channels(is_filled=is_filled)
    else:
        is_filled = False
        weight = shapes.weight_in_blocks(vector, keeps_channels=is_few(shapes))
    picked, sums = picked_bytes(shapes), sums_in_floats(shapes, weight) + sums_of_threads(shapes, weight)
    if shapes.has_tiles:
        picked, weight, sums = 0, weight_in_tiles(shapes), sums_in_tiles(shapes)
    while_made = shapes.bias_in_blocks(vector, is_filled=is_filled) + picked + bias + sums
    return max(unfolded, weight + max(while_made, 2 * shapes.weight_bytes + 2 * bias))
