"""Which of its kernels oneDNN takes for a convolution: what they know of it, by types, groups and places."""

from __future__ import annotations

import torch

from fxpasses.partitioners.costs.kernels.convolution_shapes import Convolution
from fxpasses.partitioners.costs.kernels.processor_blocks import LARGEST_VECTOR, may_use_tiles

__all__ = [
    "has_few_either_way",
    "has_own_kernel",
    "has_short_rest",
    "is_as_given",
    "is_few",
    "is_spread_apart",
    "is_unusual",
    "prefers_order",
    "spreads",
    "spreads_tiles",
    "unfolds_for_weight",
]

_IMAGE = 3
"""The most channels of which smaller processors take images as they are."""
_SMALL_KERNEL = 3
"""Up to so many places in a row, the gradient of the weight of one channel a group has a kernel of its own."""
_WIDEST_HALF = 5
"""Up to so many places in a row, the gradient of the weight of few channels has a kernel in half precision."""
_REGISTERS, _MOST_BLOCKS = 31, 4
"""Sums and what is multiplied at once, and the most blocks of channels of which a place is made at once."""
_LEAST_BLOCK = 8
"""The smallest block in which the gradient of a weight is made, by a kernel that does not do everything."""


def is_few(shapes: Convolution) -> bool:
    """Whether the channels stay as they are, as they fill no vector; smaller processors know images only."""
    few = shapes.vector - 1 if shapes.vector == LARGEST_VECTOR else _IMAGE
    return shapes.groups == 1 and shapes.channels <= few and not shapes.is_pointwise


def spreads(shapes: Convolution) -> bool:
    """Whether a strided one spreads what it reads."""
    return shapes.is_strided and shapes.fills(shapes.made)


def is_unusual(shapes: Convolution) -> bool:
    """What no kernel does backward but the one that unfolds what is read."""
    if shapes.is_depthwise and (shapes.is_volumes or shapes.is_dilated):
        return True
    return shapes.is_dilated and shapes.is_strided


def is_spread_apart(shapes: Convolution) -> bool:
    """Whether one channel a group is spread, in bfloat16."""
    is_known = shapes.dtype is torch.bfloat16 and shapes.vector == LARGEST_VECTOR
    return is_known and shapes.is_depthwise and shapes.is_strided and not shapes.is_dilated


def spreads_tiles(shapes: Convolution) -> bool:
    """Whether a strided and dilated kernel has tiles: of images, where channels of groups fill vectors."""
    fills = shapes.groups == 1 or shapes.channels % shapes.vector == shapes.made % shapes.vector == 0
    return shapes.has_tiles and shapes.is_strided and shapes.is_dilated and not shapes.is_volumes and fills


def unfolds_for_weight(shapes: Convolution, block: int) -> bool:
    """Whether the gradient of the weight is made of what is read, unfolded: no other kernel does."""
    if shapes.has_tiles:
        is_apart = shapes.is_strided or (shapes.is_volumes and shapes.is_padded) or shapes.reaches_beyond
        return shapes.grows or (shapes.is_dilated and is_apart)
    if is_unusual(shapes) or (shapes.is_dilated and shapes.is_volumes):
        return True
    if shapes.is_depthwise:
        return not has_own_kernel(shapes)
    if shapes.is_half and (shapes.groups > 1 or max(shapes.kernel) > _WIDEST_HALF) and block <= _LEAST_BLOCK:
        return True
    if shapes.reaches_beyond or shapes.is_too_wide or (shapes.dtype is torch.bfloat16 and shapes.grows):
        return True
    if block > _LEAST_BLOCK:
        return False
    return block < _LEAST_BLOCK or shapes.is_dilated or shapes.is_small or shapes.is_volumes


def prefers_order(shapes: Convolution) -> bool:
    """Whether channels come last whatever is given: half precision on processors that compute in it, but for tiles.

    One channel a group fills none.
    """
    return shapes.dtype is torch.float16 or shapes.has_tiles


def has_own_kernel(shapes: Convolution) -> bool:
    """Whether the gradient of the weight of one channel a group is a special case: of images, with a small kernel.

    No place is left out between two kernels.
    """
    is_apart = {*shapes.dilation} != {1} or any(s > k for s, k in zip(shapes.stride, shapes.kernel, strict=True))
    is_small = max(shapes.kernel) <= _SMALL_KERNEL
    return is_small and shapes.starts_inside and not (shapes.is_volumes or is_apart)


def has_few_either_way(shapes: Convolution) -> bool:
    """Whether few channels are read, and those made fill no vectors: what is read may be unfolded for a weight.

    That is so for the gradient of a weight in bfloat16 without tiles.
    """
    is_known = shapes.dtype is torch.bfloat16 and shapes.vector == LARGEST_VECTOR and not shapes.has_tiles
    return is_known and is_few(shapes) and shapes.made % shapes.vector > 0


def has_short_rest(shapes: Convolution, block: int) -> bool:
    """Whether groups in bfloat16 make the gradient of what is read of columns, as no strided kernel ends a row so.

    That is where steps leave over more places than the last run of a row has. Runs are as long as registers allow for
    channels that lie in blocks of ``block``, whole vectors where they come last.
    """
    is_known = shapes.dtype is torch.bfloat16 and shapes.vector == LARGEST_VECTOR and not shapes.has_tiles
    is_in_groups = shapes.groups > 1 and not shapes.is_depthwise and shapes.block > 0
    if not (is_known and is_in_groups and shapes.is_strided and shapes.made <= shapes.vector):
        return False
    wide, steps = shapes.source[-1], shapes.stride[-1]
    seen = (shapes.result[-1] - 1) * steps + (shapes.kernel[-1] - 1) * shapes.dilation[-1] + 1
    left_over = wide + shapes.padding[-1] - seen
    if not torch.cpu._is_avx512_bf16_supported():  # registers are fewer
        return left_over > 0
    run = _longest_run(-(-shapes.channels // block), steps)
    return wide > run and wide % run < left_over


def _longest_run(blocks: int, steps: int) -> int:
    """The places that a kernel makes at once: of the fewest blocks of channels that fill most registers."""
    runs = {each: _REGISTERS // (each * steps + 1) * steps for each in range(1, _MOST_BLOCKS + 1) if blocks % each == 0}
    return runs[max(runs, key=lambda each: each * runs[each])] or steps


def is_as_given(shapes: Convolution) -> bool:
    """Whether the gradient of the weight is made by a kernel that takes any layout: there is no other for the type."""
    return shapes.dtype is torch.float16 and not may_use_tiles()
