"""What kernels need that multiply columns: what each place of a kernel sees, unfolded, for each thread."""

from __future__ import annotations

import math

import torch

from fxpasses.partitioners.costs.kernels.convolution_shapes import Convolution
from fxpasses.partitioners.costs.kernels.processor_blocks import ALIGNMENT, FLOAT, LARGEST_VECTOR, round_up

__all__ = ["in_columns", "in_rows", "sums_of_columns"]

_SUMS = 4
"""How many gradients of a weight each thread has where the input is unfolded."""
_PLACES_OF_THREAD = 512
"""From so many places for each thread on, they share what is unfolded."""
_SHORT, _LONG, _COLUMNS, _TABLES = 512, 1024, 64, 1152
"""Rows and columns of a block of a matrix, and tables of what multiplies it."""
_CACHE = 1 << 19
"""Floats that the cache of a core holds."""
_ROWS = 16
"""Rows of a block are a multiple of so many."""


def in_columns(
    shapes: Convolution, made: int, *, before_bias: int = 0, is_last: bool = False, is_in_cache: bool = False
) -> int:
    """Where each thread has the columns of one group, and what is made may be laid out then.

    Of channels that come last all places are seen at once, else one slice. Half precision is added up as floats,
    and groups whose channels lie apart, too; what is no number that BLAS knows is computed without columns. If
    ``is_in_cache``, as many are made at once as the cache of a core holds.
    """
    if shapes.dtype is torch.float16:
        return made + max(before_bias + (0 if is_last else shapes.result_bytes), 0 if is_last else 2 * made)
    numbers = (shapes.column_bytes if is_last else _columns_of_slice(shapes)) // shapes.element
    if is_in_cache:
        numbers = min(numbers, _CACHE)
    if shapes.is_half:
        numbers += max(shapes.channels * math.prod(shapes.source[2:]), shapes.made * math.prod(shapes.result[2:]))
    elif is_last and shapes.groups > 1:
        numbers += shapes.channels * math.prod(shapes.source[2:])
    while_made = torch.get_num_threads() * numbers * max(FLOAT, shapes.element) + before_bias + _SUMS * ALIGNMENT
    return (while_made if is_last else max(while_made, made)) + made


def in_rows(shapes: Convolution) -> int:
    """Blocks of the weight, which threads lay out where several samples of one row each are multiplied with it."""
    if shapes.source[0] == 1 or not shapes.is_one_row or shapes.vector != LARGEST_VECTOR:
        return 0
    depth = shapes.channels * math.prod(shapes.kernel)
    together = min(round_up(depth, _ROWS), _SHORT if depth <= _LONG else _LONG)
    return torch.get_num_threads() * (together * _COLUMNS * max(FLOAT, shapes.element) + _TABLES)


def sums_of_columns(shapes: Convolution, *, is_last: bool = False) -> int:
    """Where each thread has columns, and gradients of the weight; of channels that come last a sample is turned."""
    threads = _unfolding_threads(shapes)
    copies = 2 * (2 * threads + 2) if shapes.is_half else threads * _SUMS  # floats, and those of all together
    sums = copies * shapes.weight_bytes
    turned = shapes.channels * math.prod(shapes.source[2:]) * shapes.element if is_last else 0
    sums += shapes.result[1] * FLOAT if shapes.is_half else 0  # of the bias
    return sums + threads * (_columns_of_slice(shapes) + turned + _SUMS * ALIGNMENT)


def _unfolding_threads(shapes: Convolution) -> int:
    """All, if each has samples or groups of its own; where there are many places, all multiply the same columns."""
    threads = torch.get_num_threads()
    is_apart = math.prod(shapes.result[2:]) < _PLACES_OF_THREAD * threads and (
        shapes.source[0] > 1 or shapes.groups > 2
    )
    return threads if is_apart or shapes.is_volumes else 1


def _columns_of_slice(shapes: Convolution) -> int:
    """Those of one sample, or of one slice of a volume."""
    return shapes.column_bytes // (shapes.result[2] if shapes.is_volumes else 1)
