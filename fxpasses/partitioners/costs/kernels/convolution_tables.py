"""What kernels of convolutions have of their own: tables, and what strided ones spread, for each thread."""

from __future__ import annotations

import math

import torch

from fxpasses.partitioners.costs.kernels.convolution_shapes import Convolution
from fxpasses.partitioners.costs.kernels.convolution_spreads import is_spread_image, spread_image_bytes
from fxpasses.partitioners.costs.kernels.convolution_tiles import spread_sample, spread_samples, tile_tables
from fxpasses.partitioners.costs.kernels.processor_blocks import ALIGNMENT, FLOAT, LARGEST_VECTOR, lanes, round_up

__all__ = [
    "few_table_bytes",
    "from_one",
    "more_table_bytes",
    "one_channel_bytes",
    "picked_bytes",
    "sample_in_floats",
    "table_bytes",
]

_PAGE, _STRIDING, _UNEVEN = 4096, 37_016, 37_000
"""Bytes of tables of a kernel that knows channels last, for each thread, of a strided one, and with a remainder."""
_PRODUCT = 40
"""Bytes in which it notes which blocks are multiplied at one place of the kernel."""
_SUMS, _SUMS_OF_LANE = 4352, 192
"""Bytes of sums of half precision for each thread, and for each channel that is computed at once."""
_AROUND = 66
"""Places around a row."""
_HALVES = 6500
"""The same in half precision, whatever is computed."""
_SPREAD, _SPREAD_STEP, _PLACE = 24_600, 32_768, 96
"""Bytes of what one channel is spread to, for each thread, each step of the stride, and each place that is made."""
_ROW, _ONE_CHANNEL = 128, 20_480
"""Numbers beside each row of one channel that is copied, and bytes of tables of the kernel that does it."""
_OF_ROWS, _OF_PLACE = 24_600, 64
"""Bytes of tables of a strided kernel of one channel a group, and for each place in a row that it reads."""


def table_bytes(shapes: Convolution, *, is_spread: bool = False, is_added: bool = False) -> int:
    """What a kernel that knows channels last has of its own; a strided one spreads a sample, with a border.

    ``is_added`` says that a bias is added to what it makes, which are floats then.
    """
    threads = torch.get_num_threads()
    if shapes.has_tiles:
        if is_spread and not shapes.is_dilated and math.prod(shapes.kernel) > 1 and len(shapes.kernel) > 1:
            return spread_samples(shapes)
        spread = threads * spread_sample(shapes) if is_spread else 0
        return max(spread, tile_tables(shapes, is_spread=is_spread))
    if not is_spread:
        unrolled = _unrolled_patches(shapes)
        of_thread = _noted_products(shapes) + unrolled + _sums_of_lanes(shapes)
        return threads * of_thread + (3 if unrolled else 1) * _PAGE + ALIGNMENT
    if shapes.is_depthwise or (shapes.is_uneven and len(shapes.kernel) == 1):
        return threads * _spread_rows(shapes, 2 if is_added and shapes.is_half else 1)
    if is_spread_image(shapes):
        return spread_image_bytes(shapes, is_added=is_added)
    sizes = zip(shapes.source[2:], shapes.result[2:], shapes.kernel, shapes.stride, strict=True)
    is_rounded = not shapes.is_half  # else fewer are spread
    places = math.prod(
        made + -(-(kernel - 1) // stride) + (1 if is_rounded and size % stride else 0)
        for size, made, kernel, stride in sizes
    )
    row = shapes.groups * round_up(shapes.channels, shapes.vector) * shapes.result[-1] * FLOAT
    if shapes.is_half:
        uneven = _sums_of_spread_row(shapes, row * (2 if is_added else 1)) if shapes.is_uneven else row - 3 * _PAGE
    else:
        uneven = max(_UNEVEN + 5 * row // 4, _sums_of_rows(shapes) if is_added else 0) if shapes.is_uneven else 0
    tables = _STRIDING + (4 * _PAGE if shapes.is_volumes else 0) + (_PAGE * shapes.element if _has_rest(shapes) else 0)
    tables += _noted_products(shapes) - _PAGE
    return threads * (tables + max(0, uneven) + round_up(places * shapes.result[1], _PAGE) * shapes.element)


def _noted_products(shapes: Convolution) -> int:
    """Which blocks are multiplied, for each place of the kernel."""
    return round_up(_PRODUCT * math.prod(shapes.kernel), _PAGE) + ALIGNMENT


def _sums_of_lanes(shapes: Convolution) -> int:
    """Floats of as many channels as are computed at once, which some kernels add up in for half precision.

    Where places lie apart these are those of a row with a border.
    """
    if not shapes.is_half:
        return 0
    together = lanes(max(shapes.channels, shapes.made), shapes.vector)
    row = max(shapes.source[-1], shapes.result[-1]) + _AROUND if shapes.is_dilated else 0
    return max(_SUMS + _SUMS_OF_LANE * together, together * row * FLOAT)


def _unrolled_patches(shapes: Convolution) -> int:
    """What a thread unrolls of a sample whose rows are one patch each, in one slice, with rows moved apart."""
    is_patch = shapes.kernel[-1] == shapes.stride[-1] == shapes.source[-1] and shapes.padding[-1] == 0
    if not is_patch or shapes.groups > 1 or (shapes.is_volumes and shapes.result[2] > 1):
        return 0
    unrolled = shapes.column_bytes // shapes.element
    return _PAGE + round_up(unrolled + unrolled // 2, _PAGE) * shapes.element


def _has_rest(shapes: Convolution) -> bool:
    """Whether some of what is read, with the places around it, is left over by the last step."""
    sizes = zip(shapes.source[2:], shapes.kernel, shapes.padding, shapes.stride, shapes.dilation, strict=True)
    return any((size + 2 * padded - (wide - 1) * far - 1) % step for size, wide, padded, step, far in sizes)


def _sums_of_spread_row(shapes: Convolution, row: int) -> int:
    """Floats of a row of what is read, and of what is made of it where a step leaves something over.

    They depend on how rows are shared, and are as many as were seen at most.
    """
    return 2 * _PAGE * shapes.element + row * (2 * shapes.stride[-1] + shapes.kernel[-1] + 1)


def _sums_of_rows(shapes: Convolution) -> int:
    """Sums of a row of what is read, of several vectors of channels, and of rows around it, in blocks of pages."""
    wide, kernel, steps = shapes.source[-1], shapes.kernel[-1], shapes.stride[-1]
    rows = wide * steps + shapes.result[-1] + (kernel - 1) * steps
    channels = lanes(shapes.channels, shapes.vector)
    return round_up(channels * kernel * rows + _PAGE, _PAGE) * FLOAT


def _spread_rows(shapes: Convolution, sums: int) -> int:
    """What each thread of a strided kernel has, in blocks of pages: what it reads, with a border, and of rows sums.

    The latter where what is made is no multiple of the stride.
    """
    wide, steps, kernel = shapes.source[-1], shapes.stride[-1], shapes.kernel[-1]
    sizes = zip(shapes.result[2:], shapes.source[2:], shapes.kernel, shapes.stride, strict=True)
    read = math.prod(made + (width - 1) // step + (1 if size % step else 0) for made, size, width, step in sizes)
    blocks = round_up(read * shapes.result[1], _PAGE)
    blocks += 4 * _PAGE if _has_rest(shapes) and shapes.dtype is torch.bfloat16 else 0
    tables = _OF_ROWS + _OF_PLACE * shapes.result[-1] + (2 * _PAGE if shapes.is_volumes else 0)
    if shapes.is_uneven:
        rows = wide * steps + shapes.result[-1] + (kernel - 1) * steps
        depth = shapes.kernel[-2] if len(shapes.kernel) > 1 else 1
        channels = max(shapes.source[1], shapes.result[1])
        blocks += sums * round_up(channels * depth * rows + _PAGE, _PAGE)
        blocks += 0 if shapes.dtype is torch.bfloat16 else blocks // 8
        tables += (3 if shapes.is_volumes else 1) * _PAGE
    return tables + blocks * shapes.element


def picked_bytes(shapes: Convolution) -> int:
    """The places of a sample that a strided kernel of one place sees, for each thread."""
    if not (shapes.is_pointwise and shapes.is_strided):
        return 0
    sample = round_up(shapes.source[1], shapes.vector) * math.prod(shapes.result[2:]) * shapes.element
    return torch.get_num_threads() * sample + ALIGNMENT


def sample_in_floats(shapes: Convolution) -> int:
    """What each thread makes of one place of a sample, in half precision, before it is rounded."""
    if not (shapes.is_pointwise and shapes.is_half):
        return 0
    sample = round_up(shapes.made, shapes.vector) * math.prod(shapes.result[2:]) * FLOAT
    return torch.get_num_threads() * (sample + (8 if shapes.is_strided else 2) * ALIGNMENT) + 2 * ALIGNMENT


def more_table_bytes(shapes: Convolution) -> int:
    """What kernels have beside in half precision, and over volumes."""
    return (_HALVES if shapes.is_half else 0) + (_PAGE if shapes.is_volumes and shapes.fills(shapes.channels) else 0)


def few_table_bytes(shapes: Convolution) -> int:
    """Tables of a kernel that computes in half vectors."""
    return torch.get_num_threads() * (_noted_products(shapes) + 2 * _PAGE) + ALIGNMENT


def from_one(shapes: Convolution) -> int:
    """What the gradient of a transposed convolution that makes one channel is spread to, with tiles or small vectors.

    Elsewhere it is what a convolution of one channel has.
    """
    if shapes.source[1] != 1 or not (shapes.has_tiles or shapes.vector != LARGEST_VECTOR):
        return 0
    if shapes.vector != LARGEST_VECTOR:
        return _STRIDING + (shapes.result_bytes if shapes.is_strided else 0)
    places = _PLACE * math.prod(shapes.result[2:])
    of_thread = _SPREAD + _SPREAD_STEP * (max(shapes.stride) - 1) + places
    return torch.get_num_threads() * of_thread + _PAGE * 2 + ALIGNMENT * shapes.result[1]


def one_channel_bytes(shapes: Convolution) -> int:
    """What a kernel that knows channels last copies of one channel a group: as it fills no vector, places are made to.

    Each thread has the rows that one of the result sees, with a border, and beside each place those that the kernel
    sees with it; of volumes a sample. Its weight is there once more. Where threads have less, that depends on more than
    is known. In floats, groups have a kernel of their own, and so do steps that a kernel and a row are a multiple of.
    In half precision groups of a few channels have tables.
    """
    if shapes.is_depthwise or shapes.has_tiles or shapes.vector != LARGEST_VECTOR:
        return 0
    threads = torch.get_num_threads()
    if shapes.channels > 1 or shapes.is_pointwise or shapes.dilation[-1] > 1:
        is_narrow = shapes.is_half and (shapes.channels == 1 or not shapes.fills(shapes.channels))
        return threads * _noted_products(shapes) + _PAGE + ALIGNMENT if is_narrow else 0
    if not shapes.is_half and (shapes.groups > 1 or _is_stepped_evenly(shapes)):
        return 0
    copied = round_up(shapes.groups * _numbers_beside(shapes), _PAGE) * shapes.element
    weight = shapes.groups * round_up(shapes.made, lanes(shapes.made, shapes.vector)) * shapes.kernel_bytes
    return threads * (copied + _noted_products(shapes) + _PAGE) + round_up(weight, _PAGE) + _ONE_CHANNEL


def _numbers_beside(shapes: Convolution) -> int:
    """Numbers of the rows of one channel that one row of the result sees, each with those that are seen with it."""
    tall, wide = shapes.kernel[-2:]
    steps, width = shapes.stride[-1], shapes.source[-1] + 2 * shapes.padding[-1]
    if shapes.is_volumes:
        sizes = zip(shapes.source[2:], shapes.padding, strict=True)
        sample = math.prod(size + 2 * padded for size, padded in sizes)
        return sample * max(shapes.stride) ** 2 + _ROW * shapes.source[2]
    rows = shapes.result[-2] if tall == 1 else _rows_with_border(shapes)
    numbers = rows * steps * (tall**2 * width + _ROW)
    return 2 * numbers + _PAGE if wide == 1 else numbers


def _rows_with_border(shapes: Convolution) -> int:
    """As many as one row of the result sees, and those of the border above and below that any sees."""
    tall, above, steps = shapes.kernel[-2], shapes.padding[-2], shapes.stride[-2]
    seen = (tall - 1) * shapes.dilation[-2] + 1
    below = max(0, (shapes.result[-2] - 1) * steps + seen - shapes.source[-2] - above)
    return seen + above + below


def _is_stepped_evenly(shapes: Convolution) -> bool:
    steps = shapes.stride[-1]
    return steps > 1 and not shapes.padding[-1] and shapes.kernel[-1] % steps == shapes.source[-1] % steps == 0
