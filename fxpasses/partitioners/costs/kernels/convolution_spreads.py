"""What each thread spreads of an image, where a strided kernel makes the gradient of what a convolution reads.

Source: sizes agree with what torch's allocator was asked for; it is the same for a transposed convolution.
"""

from __future__ import annotations

import math

import torch

from fxpasses.partitioners.costs.kernels.convolution_shapes import Convolution
from fxpasses.partitioners.costs.kernels.processor_blocks import ALIGNMENT, FLOAT, LARGEST_VECTOR, lanes, round_up

__all__ = ["is_spread_image", "spread_image_bytes"]

_PAGE = 4096
"""Numbers, and bytes, of which buffers are a multiple."""
_IMAGE_DIMENSIONS = 2
"""Dimensions of an image."""
_PRODUCT = 40
"""Bytes in which it notes which blocks are multiplied at one place of the kernel."""
_TABLES = 12_544
"""Bytes of tables of all threads."""


def is_spread_image(shapes: Convolution) -> bool:
    """Whether a strided kernel with the largest vectors, but no tiles, spreads an image in floats or bfloat16."""
    is_known = shapes.vector == LARGEST_VECTOR and not shapes.has_tiles and shapes.dtype is not torch.float16
    return is_known and len(shapes.kernel) == _IMAGE_DIMENSIONS and not shapes.is_depthwise


def spread_image_bytes(shapes: Convolution, *, is_added: bool) -> int:
    """A sample with the places around it that kernels reach, and rows of sums, for each thread.

    Sums are floats in bfloat16: those of what is computed at once, and, if ``is_added`` says that a bias is added to
    what is made, all.
    """
    wide, steps = shapes.source[-1], shapes.stride[-1]
    has_sums = shapes.is_half and not is_added
    spread = math.prod(map(sum, zip(shapes.result[2:], _reached(shapes), strict=True)))
    read = shapes.groups * round_up(shapes.made, FLOAT // shapes.element)  # of bfloat16 in pairs
    of_thread = round_up(spread * read, _PAGE) * shapes.element
    of_thread += round_up(_PRODUCT * math.prod(shapes.kernel), _PAGE) + _PAGE + ALIGNMENT
    if wide % steps:  # else rows are made where they belong
        row = round_up(steps * round_up(wide, steps) * shapes.source[1], _PAGE)
        of_thread += row * (shapes.element if has_sums else FLOAT)
    if has_sums:
        of_thread += lanes(shapes.channels, shapes.vector) * -(-wide // steps) * FLOAT
    tables = _TABLES + (_PAGE if has_sums else 0) + (_PAGE if wide % steps else 0)
    return torch.get_num_threads() * of_thread + tables


def _reached(shapes: Convolution) -> list[int]:
    """How many places before the first and after the last kernels reach, by dimensions."""
    sizes = zip(shapes.source[2:], shapes.result[2:], shapes.kernel, shapes.padding, shapes.stride, strict=True)
    return [
        max(0, kernel - 1 - padded) // step + max(0, padded + size - 1 - (made - 1) * step) // step
        for size, made, kernel, padded, step in sizes
    ]
