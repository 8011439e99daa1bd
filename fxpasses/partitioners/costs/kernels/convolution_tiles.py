"""What convolutions in bfloat16 copy on processors with AMX, which multiply tiles: rows with a border, and weights."""

from __future__ import annotations

import math

import torch

from fxpasses.partitioners.costs.kernels.convolution_shapes import Convolution
from fxpasses.partitioners.costs.kernels.processor_blocks import ALIGNMENT, FLOAT, round_up

__all__ = [
    "spread_sample",
    "spread_samples",
    "spread_tiles",
    "spreads_evenly",
    "sums_in_tiles",
    "tile_tables",
    "weight_in_tiles",
]

_PAGE = 4096
_IMAGE_DIMENSIONS = 2
"""Dimensions of an image."""
_TURNING = 9000
"""Bytes of tables where operands are turned."""
_TILE_PAIRS, _TILE_ROWS, _FEW_CHANNELS = 32, 16, 4
"""Channels fill tiles of so many, and so many rows; so few channels are laid out beside the places of the kernel."""
_MOST_UNROLLED = 5_500_000
"""The most bytes of a row of what kernels see that a thread unrolls."""
_MOST_OF_VOLUMES = 3_500_000
"""The most bytes of rows of volumes that a thread copies for a strided kernel, if it copies them as often as it can."""
_MOST_STRIDED, _TIMES_UNROLLED = {2: 2_800_000, 3: 5_100_000, 4: 8_300_000}, {2: 1.6, 3: 4.0, 4: 4.0}
"""By the step, the most bytes that a thread copies of an image for a strided kernel, as much as a cache holds for each
row that steps go over; and how many times it copies what the kernel sees, where that is less."""
_SOME_CHANNELS = 64
"""Of more channels so much is copied in some sizes, from which no rule was found; of longer steps of any."""
_SMALL_SAMPLE = 1024 * 1024
"""Of volumes so much is copied once more."""
_OF_PLACE = 2048
"""Bytes of tables for each place of a kernel that spreads."""
_TURNING_TILES, _BLOCK_TABLES, _OF_BLOCK = 20_504, 9_856, 40
"""Bytes of tables where rows are turned to tiles, for each thread, once, and for each row."""
_TURNED_AT_ONCE = 629_145
"""Three tenths of the cache of a core: so many bytes of rows are turned at once."""
_WIDE_ROW = 29
"""Rows of so many places are turned one by one, as they fill a tile, or nearly so."""
_ALONE = 12_312
"""Bytes of tables of each thread where each place is seen by itself."""
_NEXT = 3
"""A kernel of so many places in a row sees those next to each."""
_SPREAD_ROWS = 20
"""So many rows are spread at once, and those that the kernel reaches."""


def tile_tables(shapes: Convolution, *, is_spread: bool = False) -> int:
    """Rows of what is read that each thread of a processor with AMX copies: with a border, whole tiles of channels.

    Which rows depends on caches; these are as many as nearly all of some hundred convolutions had, or more.
    """
    steps = max(shapes.stride)
    if shapes.is_pointwise:
        return _alone_tables(shapes)
    if (unrolled := _unrolled_rows(shapes)) is not None:
        return torch.get_num_threads() * unrolled
    if math.prod(shapes.kernel) == 1:
        rows, times, least, weights = 0, 0.0, 96 if shapes.is_strided else 40, 0.0
    elif _is_along_one_dimension(shapes):
        rows, times, least, weights = shapes.source[2], 3.0 * steps, 48, 0.0
    elif shapes.channels <= _FEW_CHANNELS or shapes.is_volumes:
        rows, times, least, weights = shapes.source[2], max(2.0, steps / 2), 96, 0.5
    elif steps == 1:
        rows, times, least, weights = _rows_for(shapes, 1024), 4.0, 64, 0.0
    elif steps != max(shapes.kernel) and not shapes.is_dilated:
        rows, times, least, weights = _rows_for(shapes, 256), 4.0, 96, 0.0
    elif shapes.is_dilated:
        rows, times, least, weights = shapes.source[2], 6.0 if shapes.is_strided else 3.5, 96, 0.0
    else:  # patches
        rows, times, least, weights = _rows_for(shapes, 128), 6.0, 24, 1.0
    border = max((max(shapes.kernel) - 1) * max(shapes.dilation), 2 * max(shapes.padding)) if shapes.is_padded else 0
    across = math.prod(size + border for size in shapes.source[3:])
    channels = shapes.groups * round_up(shapes.channels, _TILE_PAIRS) * shapes.element
    least += math.prod(shapes.kernel)
    of_thread = least * 1024 + int(times * (rows + (border if rows else 0)) * across * channels)
    if weights == 1.0 and not is_spread:
        of_thread = max(of_thread, 96 * 1024 + 2 * channels * math.prod(shapes.source[2:]))
    if _is_strided_image(shapes):
        of_thread = max(of_thread, least * 1024 + _filled_caches(shapes))
    if math.prod(shapes.kernel) == 1:
        of_thread += _more_of_one_place(shapes)
    elif shapes.is_volumes:  # small samples are copied once more
        of_thread += min((rows + border) * across * channels, _SMALL_SAMPLE)
    if shapes.is_volumes and steps > 1:
        copied = int(1.1 * steps**2 * (rows + border) * across * channels)
        of_thread = max(of_thread, min(least * 1024 + copied, _MOST_OF_VOLUMES))
    if math.prod(shapes.source[2:-1]) == 1:
        seen = min(max(shapes.kernel), _TILE_PAIRS // 2) * steps * shapes.result[-1]
        of_thread = min(of_thread, 64 * 1024 + 10 * shapes.groups * shapes.channels * seen)
    if _is_small_kernel(shapes):
        of_thread = min(of_thread, _whole_sample(shapes))
    return torch.get_num_threads() * of_thread + int(weights * shapes.weight_bytes)


def _is_small_kernel(shapes: Convolution) -> bool:
    """Whether it sees the places next to each, of all channels: of no more than a sample so much is copied."""
    is_plain = shapes.groups == 1 and not (shapes.is_dilated or shapes.reaches_beyond)
    is_next = max(shapes.kernel) <= _NEXT and not shapes.is_strided
    if not is_plain or _is_along_one_dimension(shapes) or not (is_next or shapes.is_patches):
        return False
    if 1 < shapes.channels <= _FEW_CHANNELS:
        return shapes.is_volumes
    return is_next and shapes.channels >= _TILE_ROWS


def _whole_sample(shapes: Convolution) -> int:
    """A sample with its border, as often as it is copied at most, and tables."""
    sizes = zip(shapes.source[2:], shapes.padding, strict=True)
    sample = math.prod(size + 2 * padded for size, padded in sizes) * round_up(shapes.channels, _TILE_PAIRS)
    has_few = shapes.channels <= _FEW_CHANNELS
    tables = (9 if shapes.is_volumes and not has_few else 4) * 4 * _PAGE + -(-shapes.channels // _TILE_PAIRS) * _PAGE
    return (1 if has_few else 2) * sample * shapes.element + tables


def _alone_tables(shapes: Convolution) -> int:
    """Where each place is seen by itself: those of a group that a stride leaves, or odd channels, are picked."""
    of_thread = _ALONE
    if shapes.is_strided or shapes.channels % 2:
        places = math.prod(shapes.result[2:]) * round_up(shapes.channels, 2) * shapes.element
        of_thread += 2 * _PAGE + round_up(places, ALIGNMENT) + ALIGNMENT
    return torch.get_num_threads() * of_thread + 2 * _PAGE + ALIGNMENT


def _is_strided_image(shapes: Convolution) -> bool:
    """Whether a kernel goes over an image in steps, and sees places more than once."""
    is_image = len(shapes.kernel) == _IMAGE_DIMENSIONS and not _is_along_one_dimension(shapes)
    steps = max(shapes.stride)
    has_many = shapes.channels > _SOME_CHANNELS or (steps > min(_MOST_STRIDED) and shapes.channels > _FEW_CHANNELS)
    return is_image and 1 < steps < max(shapes.kernel) and not shapes.is_dilated and has_many


def _filled_caches(shapes: Convolution) -> int:
    """What a thread copies of an image in the sizes in which it copies most."""
    steps = min(max(shapes.stride), max(_MOST_STRIDED))
    channels = shapes.groups * round_up(shapes.channels, _TILE_PAIRS) * shapes.element
    seen = math.prod(shapes.kernel) * math.prod(shapes.result[2:]) * channels
    return min(_MOST_STRIDED[steps], int(_TIMES_UNROLLED[steps] * seen))


def _more_of_one_place(shapes: Convolution) -> int:
    """Where one place is seen those that a stride leaves are picked, but of images."""
    is_picked = shapes.is_strided and len(shapes.kernel) != _IMAGE_DIMENSIONS
    channels = shapes.groups * round_up(shapes.channels, _TILE_PAIRS)
    return 4 * _PAGE + (math.prod(shapes.result[2:]) * channels * shapes.element if is_picked else 0)


def _is_along_one_dimension(shapes: Convolution) -> bool:
    """Whether places are seen in one row only: sequences, and kernels with one row."""
    return sum(places > 1 for places in shapes.kernel) <= 1


def _unrolled_rows(shapes: Convolution) -> int | None:
    """What each place of a row sees, as a thread unrolls it where a strided kernel reads an image; None elsewhere.

    Rows that take more than caches hold are not unrolled. Patches are where rows of them fill whole tiles, and
    rows of a patch do not; others are copied.
    """
    steps, kernel = max(shapes.stride), max(shapes.kernel)
    if len(shapes.kernel) != 2 or shapes.channels >= _FEW_CHANNELS or not 1 < steps <= kernel:
        return None
    unrolled = shapes.channels * kernel**3 * steps**2 * shapes.result[-1]
    if steps < kernel:
        return 110 * 1024 + 6 * unrolled if 6 * unrolled <= _MOST_UNROLLED else None
    made = shapes.result[1] * kernel**2
    copied = max(2.4 * shapes.channels * kernel * math.prod(shapes.source[2:]) + 10 * made, 32.0 * made)
    fills = shapes.result[2] % _TILE_ROWS == 0 and shapes.channels * kernel % _TILE_ROWS != 0
    return 110 * 1024 + int(max(copied, 4.6 * unrolled if fills else 0.0))


def _rows_for(shapes: Convolution, places: int) -> int:
    """The rows of what is read that so many places of the result need."""
    rows, across = shapes.result[2], shapes.result[-1]
    return min(shapes.source[2], shapes.stride[0] * (min(rows, -(-places // across)) - 1) + shapes.kernel[0])


def spread_sample(shapes: Convolution) -> int:
    """What a strided kernel with tiles spreads at least: all of a sample, where it sees one place only."""
    if math.prod(shapes.kernel) > 1:
        return 64 * 1024
    places = math.prod(shapes.result[2:]) * (max(shapes.stride) if len(shapes.kernel) == 1 else 1)
    return 96 * 1024 + places * shapes.groups * round_up(shapes.made, _TILE_PAIRS) * shapes.element


def spreads_evenly(shapes: Convolution) -> bool:
    """Whether steps leave nothing over, of many channels, and no kernel sees a border alone: most that are spread."""
    is_known = shapes.is_strided and shapes.groups == 1 and min(shapes.channels, shapes.made) > _FEW_CHANNELS
    sees_border_alone = shapes.is_padded and max(shapes.kernel) <= max(shapes.stride)
    return is_known and not (shapes.is_uneven or shapes.is_dilated or sees_border_alone)


def spread_samples(shapes: Convolution) -> int:
    """A sample of what is spread, with a border, in whole tiles of channels, as each thread copies it, and tables."""
    sizes = zip(shapes.result[2:], shapes.kernel, shapes.stride, strict=True)
    is_even = shapes.is_patches and not shapes.is_uneven
    more = 1 if shapes.is_patches else 0
    places = math.prod(made + (0 if is_even else -(-(kernel - 1) // step) + more) for made, kernel, step in sizes)
    sample = shapes.groups * round_up(shapes.made, _TILE_PAIRS) * places * shapes.element
    of_thread = round_up(sample, 2 * _PAGE) + 9 * _PAGE
    if not spreads_evenly(shapes):
        return torch.get_num_threads() * (of_thread + _OF_PLACE * math.prod(shapes.kernel)) + 6 * _PAGE
    return torch.get_num_threads() * (of_thread + 2 * _PAGE + _OF_PLACE // 4 * math.prod(shapes.kernel)) + ALIGNMENT


def weight_in_tiles(shapes: Convolution) -> int:
    """The gradient of the weight as it is made with tiles."""
    return (
        shapes.groups
        * round_up(shapes.made, shapes.vector)
        * round_up(shapes.channels, _TILE_PAIRS)
        * shapes.kernel_bytes
    )


def sums_in_tiles(shapes: Convolution) -> int:
    """That as floats, and rows of what is read and made that are turned, in whole tiles, as each thread has them.

    The weight is added up in blocks of a vector. So many rows are turned at once as fit into a part of the cache.
    """
    across, source, result = _turned_rows(shapes)
    sums = shapes.groups * round_up(shapes.made, shapes.vector) * round_up(shapes.channels, shapes.vector)
    sums *= math.prod(shapes.kernel) * FLOAT
    rows = 1 if _is_in_one_row(shapes) else math.prod(shapes.result[2:-1])
    tables = round_up(_OF_BLOCK * rows, _PAGE) - _PAGE + (across // _TILE_PAIRS - 1) * _PAGE // 4
    threads = torch.get_num_threads()
    return threads * (sums + source + result + _TURNING_TILES) + _BLOCK_TABLES + tables + ALIGNMENT


def _turned_rows(shapes: Convolution) -> tuple[int, int, int]:
    """How wide a row is as it is turned, and the bytes of all rows of what is read and made that are there at once."""
    channels = round_up(shapes.channels, shapes.vector) * shapes.element
    made = round_up(shapes.made, shapes.vector) * shapes.element
    slices = shapes.groups * math.prod(shapes.result[2:-2])
    read_slices = shapes.groups * math.prod(shapes.source[2:-2])
    rows, width, read_rows = (shapes.result[2:-1] or (1,))[-1], shapes.result[-1], (shapes.source[2:-1] or (1,))[-1]
    if _is_in_one_row(shapes):
        rows, width, read_rows = 1, rows * width, 1
    steps = shapes.stride[-1]
    seen = (width - 1) * steps + (shapes.kernel[-1] - 1) * shapes.dilation[-1] + 1
    across = round_up(seen, _TILE_PAIRS * steps)
    blocks = -(-width // _TILE_PAIRS)
    source, result = channels * across, made * round_up(-(-width // blocks), 2) * blocks
    together = _rows_in_cache(rows, source + result)
    seen_rows = _seen_rows(shapes, together) if together < rows else read_rows
    return across, read_slices * min(read_rows, seen_rows) * source, slices * together * result


def _rows_in_cache(rows: int, row_bytes: int) -> int:
    """How many rows are turned at once: all, or as many parts as it takes for one to fit."""
    parts = next((parts for parts in range(1, rows) if -(-rows // parts) * row_bytes <= _TURNED_AT_ONCE), rows)
    return -(-rows // parts)


def _seen_rows(shapes: Convolution, together: int) -> int:
    """The rows that so many rows of the result see; more are turned where a larger kernel leaves out some."""
    steps, kernel = shapes.stride[-2], shapes.kernel[-2]
    if kernel == 1:
        return together * steps
    if steps == 1:
        return together + (kernel - 1) * shapes.dilation[-2]
    return steps * (together * steps + kernel * shapes.dilation[-2])


def _is_in_one_row(shapes: Convolution) -> bool:
    """Whether rows of an image that are no tile wide follow each other in one: where each place is seen by itself."""
    is_alone = all(
        {*sizes[-2:]} == {usual} for sizes, usual in ((shapes.kernel, 1), (shapes.stride, 1), (shapes.padding, 0))
    )
    return is_alone and shapes.result[-1] < _WIDE_ROW


def spread_tiles(shapes: Convolution) -> int:
    """Rows of what is read that a strided and dilated kernel spreads for tiles, and its weight."""
    pairs, steps = _TILE_PAIRS, (max(shapes.kernel) - 1) * max(shapes.dilation)
    rows = -(-shapes.made // pairs) * 2 * pairs * (shapes.source[-1] + steps)
    rows *= 1 if len(shapes.kernel) == 1 else _SPREAD_ROWS + steps
    channels = round_up(shapes.channels, shapes.vector) * round_up(shapes.made, pairs)
    return torch.get_num_threads() * (rows + _TURNING) + 2 * _PAGE + shapes.groups * channels * shapes.kernel_bytes
