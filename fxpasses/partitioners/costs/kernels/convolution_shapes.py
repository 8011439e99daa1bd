"""A convolution as oneDNN sees it: sizes of its operands, and of the layouts in which kernels on the CPU want them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from fxpasses.partitioners.tensor_sizes import concrete_size

__all__ = ["ALIGNMENT", "LARGEST_VECTOR", "Convolution", "has_tiles", "may_use_tiles", "round_up"]

ALIGNMENT = 128
_PAGE, _STRIDING, _UNEVEN, _UNEVEN_HALF = 4096, 37_016, 37_000, 8_800
"""Bytes of tables of a kernel that knows channels last, for each thread, of a strided one, and with a remainder."""
LARGEST_VECTOR = 16
_SMALLEST_BLOCK = 4
_IMAGE_DIMENSIONS, _VOLUMES = 2, 5
"""Dimensions of an image, and of a batch of volumes."""
_TURNING = 9000
"""Bytes of tables where operands are turned."""
_HALVES = 6500
"""The same in half precision, whatever is computed."""
_SUMS = 4
"""How many gradients of a weight each thread has where the input is unfolded."""
_PLACES_OF_THREAD = 512
"""From so many places for each thread on, they share what is unfolded."""
_BARRIERS, _FAR_MORE = 21_000, 8
"""Bytes with which threads that sum up apart wait for each other; they do from so many times as many places on."""
_SPREAD, _SPREAD_STEP, _PLACE = 24_600, 32_768, 96
"""Bytes of what one channel is spread to, for each thread, each step of the stride, and each place that is made."""
_TILE_PAIRS, _TILE_ROWS, _FEW_CHANNELS = 32, 16, 4
"""Channels fill tiles of so many, and so many rows; so few channels are laid out beside the places of the kernel."""
_MOST_UNROLLED = 5_500_000
"""The most bytes of a row of what kernels see that a thread unrolls."""
_FLOAT = 4
_SHORT, _LONG, _COLUMNS, _TABLES = 512, 1024, 64, 1152
"""Rows and columns of a block of a matrix, and tables of what multiplies it."""
_MOST_OF_VOLUMES = 3_500_000
"""The most bytes of rows of volumes that a thread copies for a strided kernel, if it copies them as often as it can."""
_SMALL_SAMPLE = 1024 * 1024
"""Of volumes so much is copied once more."""
_SPREAD_ROWS = 20
"""So many rows are spread at once, and those that the kernel reaches."""
_OF_ROWS, _OF_PLACE = 24_600, 64
"""Bytes of tables of a strided kernel of one channel a group, and for each place in a row that it reads."""


@attrs.frozen
class Convolution:
    """A convolution of ``(batch, channels, *places)`` with numbers for sizes.

    Args:
        source: What it reads.
        result: What it makes.
        kernel: The places of the kernel.
        groups: How many convolutions of a part of the channels there are side by side.
        dtype: Of what it reads and makes.
        stride: By places.
        padding: How many places around the source it sees, by places.
        dilation: How far apart the places lie that it sees, by places.
    """

    source: tuple[int, ...]
    result: tuple[int, ...]
    kernel: tuple[int, ...]
    groups: int
    dtype: torch.dtype
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, given: Tensor, weight: Tensor, settings: Sequence[Any], result: Tensor) -> Convolution:
        """``settings`` as ``aten.convolution`` has them; a transposed one is told the other way round."""
        stride, padding, dilation, is_transposed, _more, groups = settings
        source, made = (result, given) if is_transposed else (given, result)
        kernel = _numbers(weight.shape[2:])
        return cls(
            source=_numbers(source.shape),
            result=_numbers(made.shape),
            kernel=kernel,
            groups=groups,
            dtype=given.dtype,
            stride=_for_each_place(stride, kernel),
            padding=_for_each_place(padding, kernel),
            dilation=_for_each_place(dilation, kernel),
        )

    def other_way_round(self) -> Convolution:
        """One that reads what this one makes, with the same kernel."""
        sizes = zip(self.kernel, self.padding, self.dilation, strict=True)
        around = tuple(max(0, (kernel - 1) * apart - padded) for kernel, padded, apart in sizes)
        return attrs.evolve(self, source=self.result, result=self.source, padding=around)

    @property
    def channels(self) -> int:
        """Those that each group reads."""
        return self.source[1] // self.groups

    @property
    def made(self) -> int:
        """The channels that each group makes."""
        return self.result[1] // self.groups

    @property
    def element(self) -> int:
        """Bytes of one."""
        return self.dtype.itemsize

    @property
    def is_half(self) -> bool:
        """Whether it computes in half precision."""
        return self.element < _FLOAT

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel makes one of its own."""
        return self.groups > 1 and self.channels == self.made == 1

    @property
    def is_strided(self) -> bool:
        """Whether it leaves out places."""
        return {*self.stride} != {1}

    @property
    def is_padded(self) -> bool:
        """Whether it sees places around the source."""
        return {*self.padding} != {0}

    @property
    def is_dilated(self) -> bool:
        """Whether the places that it sees lie apart."""
        return {*self.dilation} != {1} and {*self.kernel} != {1}

    @property
    def is_pointwise(self) -> bool:
        """Whether each place of the result comes from one of the source."""
        return math.prod(self.kernel) == 1 and not self.is_padded

    @property
    def is_small(self) -> bool:
        """Whether the source is smaller than the kernel."""
        return any(place < kernel for place, kernel in zip(self.source[2:], self.kernel, strict=True))

    @property
    def reaches_beyond(self) -> bool:
        """Whether a dilated kernel reaches across the source, or one over volumes further: few kernels know such."""
        sizes = zip(self.source[2:], self.kernel, self.dilation, strict=True)
        left = min(place - (kernel - 1) * apart - 1 for place, kernel, apart in sizes)
        return left <= 0 if self.is_dilated else left < 0 and self.is_volumes

    @property
    def starts_inside(self) -> bool:
        """Whether the first step that lies inside of the source sees places of it only."""
        sizes = zip(self.source[2:], self.kernel, self.padding, self.stride, strict=True)
        return all(place >= kernel + -padded % step for place, kernel, padded, step in sizes)

    @property
    def is_one_row(self) -> bool:
        """Whether each sample is one row that is multiplied with a matrix: the kernel is as large as what is read."""
        return self.groups == 1 and self.source[2:] == self.kernel and not self.is_padded and not self.is_pointwise

    @property
    def is_volumes(self) -> bool:
        """Whether places have a depth, too."""
        return len(self.result) == _VOLUMES

    @property
    def vector(self) -> int:
        """As many floats as the processor computes with at once; so many channels lie together."""
        return LARGEST_VECTOR if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 8

    @property
    def block(self) -> int:
        """How many channels lie together where they come first: 0 where those of a group fill no blocks."""
        if self.groups == 1 or self.is_depthwise:
            return self.vector
        sizes = (self.vector, self.vector // 2, _SMALLEST_BLOCK) if self.vector == LARGEST_VECTOR else (self.vector,)
        return next((size for size in sizes if self.channels % size == self.made % size == 0), 0)

    @property
    def source_bytes(self) -> int:
        """Of what it reads."""
        return math.prod(self.source) * self.element

    @property
    def result_bytes(self) -> int:
        """Of what it makes."""
        return math.prod(self.result) * self.element

    @property
    def weight_bytes(self) -> int:
        """Of the weight."""
        return self.groups * self.channels * self.made * self.kernel_bytes

    @property
    def kernel_bytes(self) -> int:
        """Of what one channel does to another."""
        return math.prod(self.kernel) * self.element

    @property
    def column_bytes(self) -> int:
        """What each place of the kernel sees at each place of a sample, in one group."""
        return self.channels * self.kernel_bytes * math.prod(self.result[2:])

    def in_columns(self, made: int, *, before_bias: int = 0, is_last: bool = False) -> int:
        """Where each thread has the columns of one group, and what is made may be laid out then.

        Of channels that come last all places are seen at once, else one slice. Half precision is added up as floats,
        and groups whose channels lie apart, too; what is no number that BLAS knows is computed without columns.
        """
        if self.dtype is torch.float16:
            return made + max(before_bias + (0 if is_last else self.result_bytes), 0 if is_last else 2 * made)
        numbers = (self.column_bytes if is_last else self._columns_of_slice) // self.element
        if self.is_half or (is_last and self.groups > 1):
            numbers += self.channels * math.prod(self.source[2:])
        while_made = torch.get_num_threads() * numbers * max(_FLOAT, self.element) + before_bias + _SUMS * ALIGNMENT
        return (while_made if is_last else max(while_made, made)) + made

    def in_rows(self) -> int:
        """Blocks of the weight, which threads lay out where several samples of one row each are multiplied with it."""
        if self.source[0] == 1 or not self.is_one_row or self.vector != LARGEST_VECTOR:
            return 0
        depth = self.channels * math.prod(self.kernel)
        together = min(round_up(depth, _TILE_ROWS), _SHORT if depth <= _LONG else _LONG)
        return torch.get_num_threads() * (together * _COLUMNS * max(_FLOAT, self.element) + _TABLES)

    def sums_of_columns(self, *, is_last: bool = False) -> int:
        """Where each thread has columns, and gradients of the weight; of channels that come last a sample is turned."""
        threads = self._unfolding_threads
        copies = 2 * (2 * threads + 2) if self.is_half else threads * _SUMS  # floats, and those of all together
        sums = copies * self.weight_bytes
        turned = self.channels * math.prod(self.source[2:]) * self.element if is_last else 0
        return sums + threads * (self._columns_of_slice + turned + _SUMS * ALIGNMENT)

    @property
    def _unfolding_threads(self) -> int:
        """All, if each has samples or groups of its own; where there are many places, all multiply the same columns."""
        threads = torch.get_num_threads()
        is_apart = math.prod(self.result[2:]) < _PLACES_OF_THREAD * threads and (self.source[0] > 1 or self.groups > 2)
        return threads if is_apart or self.is_volumes else 1

    def sums_of_threads(self, weight: int) -> int:
        """Gradients of a weight that threads sum up apart, and with which they wait for each other.

        They do it where there are fewer blocks of channels than threads, or far more places than weights.
        """
        threads = torch.get_num_threads()
        if threads == 1 or self.is_half or self.is_depthwise:
            return 0
        blocks = self.groups * -(-self.channels // self.vector) * -(-self.made // self.vector)
        laid_out = self.in_blocks(self.source, self.vector) + self.in_blocks(self.result, self.vector)
        has_rest = blocks % threads != 0 and blocks < 2 * threads
        apart = threads if has_rest or laid_out > _FAR_MORE * weight else -(-threads // blocks)
        return (apart - 1) * weight + _BARRIERS

    @property
    def _columns_of_slice(self) -> int:
        """Those of one sample, or of one slice of a volume."""
        return self.column_bytes // (self.result[2] if self.is_volumes else 1)

    def in_blocks(self, shape: tuple[int, ...], block: int) -> int:
        """An operand in which channels fill blocks."""
        batch, channels, *places = shape
        return batch * round_up(channels, block) * math.prod(places) * self.element

    def weight_in_blocks(self, block: int, *, keeps_channels: bool = False) -> int:
        """The weight likewise; what the kernel reads stays as it is where channels are few."""
        if self.is_depthwise:
            return round_up(self.groups, block) * self.kernel_bytes
        channels = self.channels if keeps_channels else round_up(self.channels, block)
        return self.groups * round_up(self.made, block) * channels * self.kernel_bytes

    def weight_in_order(self, along: int, other: int) -> int:
        """The weight for a kernel that knows channels last, which makes ``along`` channels of ``other`` in a group."""
        if self.is_depthwise:
            return self.weight_of_channels(is_filled=False)
        if self.fills(other):  # several vectors of what is made at once
            if has_tiles(self.dtype) and other > self.vector:
                other = round_up(other, _TILE_PAIRS)
            size = self.groups * round_up(along, _lanes(along, self.vector)) * other * self.kernel_bytes
            return size * (2 if self.is_half and other == 1 else 1)  # in pairs
        if self.channels == self.made and self.block:
            return self.weight_bytes
        return self.weight_in_blocks(self.vector)

    def weight_of_channels(self, *, is_filled: bool) -> int:
        """The weight of one channel a group, and whether each group has a whole block of both kinds of channels."""
        if is_filled:
            groups = self.groups * self.vector**2
        else:
            groups = self.groups * self.vector if self.dtype is torch.float16 else round_up(self.groups, self.vector)
        return groups * self.kernel_bytes

    def fills(self, channels: int) -> bool:
        """Whether so many in each group are enough for a kernel that knows channels last."""
        return not self.is_depthwise and (self.groups == 1 or channels >= self.vector)

    def tables(self, *, is_spread: bool = False, is_added: bool = False) -> int:
        """What a kernel that knows channels last has of its own; a strided one spreads a sample, with a border.

        ``is_added`` says that a bias is added to what it makes, which are floats then.
        """
        threads = torch.get_num_threads()
        if has_tiles(self.dtype) and not self.is_depthwise:
            spread = threads * self._spread_sample() if is_spread else 0
            return max(spread, self._tile_tables(is_spread=is_spread))
        if not is_spread:
            return (threads + 1) * (_PAGE + ALIGNMENT)
        if self.is_depthwise or (self.is_uneven and len(self.kernel) == 1):
            return threads * self._spread_rows(2 if is_added and self.is_half else 1)
        sizes = zip(self.source[2:], self.result[2:], self.kernel, self.stride, strict=True)
        is_rounded = not self.is_half  # else fewer are spread
        places = math.prod(
            made + -(-(kernel - 1) // stride) + (1 if is_rounded and size % stride else 0)
            for size, made, kernel, stride in sizes
        )
        uneven = (_UNEVEN_HALF if self.is_half else _UNEVEN) if self.is_uneven else 0
        if uneven and is_added and not self.is_half:
            uneven = max(uneven, self._sums_of_rows())
        tables = _STRIDING + (4 * _PAGE if self.is_volumes else 0) + (_PAGE * self.element if self._has_rest else 0)
        return threads * (tables + uneven + round_up(places * self.result[1], _PAGE) * self.element)

    @property
    def _has_rest(self) -> bool:
        """Whether some of what is read, with the places around it, is left over by the last step."""
        sizes = zip(self.source[2:], self.kernel, self.padding, self.stride, self.dilation, strict=True)
        return any((size + 2 * padded - (wide - 1) * far - 1) % step for size, wide, padded, step, far in sizes)

    def _sums_of_rows(self) -> int:
        """Sums of a row of what is read, of several vectors of channels, and of rows around it, in blocks of pages."""
        wide, kernel, steps = self.source[-1], self.kernel[-1], self.stride[-1]
        rows = wide * steps + self.result[-1] + (kernel - 1) * steps
        lanes = _lanes(self.channels, self.vector)
        return round_up(lanes * kernel * rows + _PAGE, _PAGE) * _FLOAT

    def _spread_rows(self, sums: int) -> int:
        """What each thread of a strided kernel has, in blocks of pages: what it reads, with a border, and of rows sums.

        The latter where what is made is no multiple of the stride.
        """
        wide, steps, kernel = self.source[-1], self.stride[-1], self.kernel[-1]
        sizes = zip(self.result[2:], self.source[2:], self.kernel, self.stride, strict=True)
        read = math.prod(made + (width - 1) // step + (1 if size % step else 0) for made, size, width, step in sizes)
        blocks = round_up(read * self.result[1], _PAGE)
        blocks += 4 * _PAGE if self._has_rest and self.dtype is torch.bfloat16 else 0
        tables = _OF_ROWS + _OF_PLACE * self.result[-1] + (2 * _PAGE if self.is_volumes else 0)
        if self.is_uneven:
            rows = wide * steps + self.result[-1] + (kernel - 1) * steps
            depth = self.kernel[-2] if len(self.kernel) > 1 else 1
            channels = max(self.source[1], self.result[1])
            blocks += sums * round_up(channels * depth * rows + _PAGE, _PAGE)
            blocks += 0 if self.dtype is torch.bfloat16 else blocks // 8
            tables += (3 if self.is_volumes else 1) * _PAGE
        return tables + blocks * self.element

    def _spread_sample(self) -> int:
        """What a strided kernel with tiles spreads at least: all of a sample, where it sees one place only."""
        if math.prod(self.kernel) > 1:
            return 64 * 1024
        places = math.prod(self.result[2:]) * (max(self.stride) if len(self.kernel) == 1 else 1)
        return 96 * 1024 + places * self.groups * round_up(self.made, _TILE_PAIRS) * self.element

    def _tile_tables(self, *, is_spread: bool = False) -> int:
        """Rows of what is read that each thread of a processor with AMX copies: with a border, whole tiles of channels.

        Which rows depends on caches; these are as many as nearly all of some hundred convolutions had, or more.
        """
        steps = max(self.stride)
        if (unrolled := self._unrolled_rows()) is not None:
            return torch.get_num_threads() * unrolled
        if math.prod(self.kernel) == 1:
            rows, times, least, weights = 0, 0.0, 96 if self.is_strided else 40, 0.0
        elif self._is_along_one_dimension:
            rows, times, least, weights = self.source[2], 3.0 * steps, 48, 0.0
        elif self.channels <= _FEW_CHANNELS or self.is_volumes:
            rows, times, least, weights = self.source[2], max(2.0, steps / 2), 96, 0.5
        elif steps == 1:
            rows, times, least, weights = self._rows_for(1024), 4.0, 64, 0.0
        elif steps != max(self.kernel) and not self.is_dilated:
            rows, times, least, weights = self._rows_for(256), 4.0, 96, 0.0
        elif self.is_dilated:
            rows, times, least, weights = self.source[2], 6.0 if self.is_strided else 3.5, 96, 0.0
        else:  # patches
            rows, times, least, weights = self._rows_for(128), 6.0, 24, 1.0
        border = max((max(self.kernel) - 1) * max(self.dilation), 2 * max(self.padding)) if self.is_padded else 0
        across = math.prod(size + border for size in self.source[3:])
        channels = self.groups * round_up(self.channels, _TILE_PAIRS) * self.element
        least += math.prod(self.kernel)
        of_thread = least * 1024 + int(times * (rows + (border if rows else 0)) * across * channels)
        if weights == 1.0 and not is_spread:
            of_thread = max(of_thread, 96 * 1024 + 2 * channels * math.prod(self.source[2:]))
        if math.prod(self.kernel) == 1:
            of_thread += self._more_of_one_place()
        elif self.is_volumes:  # small samples are copied once more
            of_thread += min((rows + border) * across * channels, _SMALL_SAMPLE)
        if self.is_volumes and steps > 1:
            copied = int(1.1 * steps**2 * (rows + border) * across * channels)
            of_thread = max(of_thread, min(least * 1024 + copied, _MOST_OF_VOLUMES))
        if self._is_along_one_dimension:
            seen = min(max(self.kernel), _TILE_PAIRS // 2) * steps * self.result[-1]
            of_thread = min(of_thread, 64 * 1024 + 10 * self.groups * self.channels * seen)
        return torch.get_num_threads() * of_thread + int(weights * self.weight_bytes)

    def _more_of_one_place(self) -> int:
        """Where one place is seen those that a stride leaves are picked, but of images."""
        is_picked = self.is_strided and len(self.kernel) != _IMAGE_DIMENSIONS
        channels = self.groups * round_up(self.channels, _TILE_PAIRS)
        return 4 * _PAGE + (math.prod(self.result[2:]) * channels * self.element if is_picked else 0)

    @property
    def _is_along_one_dimension(self) -> bool:
        """Whether places are seen in one row only: sequences, and kernels with one row."""
        return 1 in (len(self.kernel), *self.kernel)

    def _unrolled_rows(self) -> int | None:
        """What each place of a row sees, as a thread unrolls it where a strided kernel reads an image; None elsewhere.

        Rows that take more than caches hold are not unrolled. Patches are where rows of them fill whole tiles, and
        rows of a patch do not; others are copied.
        """
        steps, kernel = max(self.stride), max(self.kernel)
        if len(self.kernel) != 2 or self.channels >= _FEW_CHANNELS or not 1 < steps <= kernel:
            return None
        unrolled = self.channels * kernel**3 * steps**2 * self.result[-1]
        if steps < kernel:
            return 110 * 1024 + 6 * unrolled if 6 * unrolled <= _MOST_UNROLLED else None
        made = self.result[1] * kernel**2
        copied = max(2.4 * self.channels * kernel * math.prod(self.source[2:]) + 10 * made, 32.0 * made)
        fills = self.result[2] % _TILE_ROWS == 0 and self.channels * kernel % _TILE_ROWS != 0
        return 110 * 1024 + int(max(copied, 4.6 * unrolled if fills else 0.0))

    def weight_in_tiles(self) -> int:
        """The gradient of the weight as it is made with tiles."""
        return self.groups * round_up(self.made, self.vector) * round_up(self.channels, _TILE_PAIRS) * self.kernel_bytes

    def sums_in_tiles(self) -> int:
        """That as floats, but for patches of images, and samples of what is read and made that are turned."""
        border = self.kernel[-1] - 1 + 2 * (self.stride[-1] - 1)
        source = round_up(self.channels, _TILE_PAIRS) * math.prod(self.source[2:-1]) * (self.source[-1] + border)
        result = round_up(self.made, self.vector) * math.prod(self.result[2:])
        is_patches = self.channels <= _FEW_CHANNELS and self.stride == self.kernel
        sums = (1 if is_patches else 2) * self.weight_in_tiles()
        if self.is_volumes:  # places that a strided kernel leaves out
            left_out = round_up(self.channels, _TILE_PAIRS) * math.prod(self.source[2:]) * self.groups
            sums += 10 * (max(self.stride) - 1) * left_out * self.element // 2
        return torch.get_num_threads() * (sums + 3 * self.groups * (source + result) * self.element + 176 * 1024)

    def spread_tiles(self) -> int:
        """Rows of what is read that a strided and dilated kernel spreads for tiles, and its weight."""
        pairs, steps = _TILE_PAIRS, (max(self.kernel) - 1) * max(self.dilation)
        rows = -(-self.made // pairs) * 2 * pairs * (self.source[-1] + steps)
        rows *= 1 if len(self.kernel) == 1 else _SPREAD_ROWS + steps
        channels = round_up(self.channels, self.vector) * round_up(self.made, pairs)
        return torch.get_num_threads() * (rows + _TURNING) + 2 * _PAGE + self.groups * channels * self.kernel_bytes

    def _rows_for(self, places: int) -> int:
        """The rows of what is read that so many places of the result need."""
        rows, across = self.result[2], self.result[-1]
        return min(self.source[2], self.stride[0] * (min(rows, -(-places // across)) - 1) + self.kernel[0])

    @property
    def is_uneven(self) -> bool:
        """Whether what is read is no multiple of the stride."""
        return any(size % stride for size, stride in zip(self.source[2:], self.stride, strict=True))

    def picked(self) -> int:
        """The places of a sample that a strided kernel of one place sees, for each thread."""
        if not (self.is_pointwise and self.is_strided):
            return 0
        sample = round_up(self.source[1], self.vector) * math.prod(self.result[2:]) * self.element
        return torch.get_num_threads() * sample + ALIGNMENT

    def sample_in_floats(self) -> int:
        """What each thread makes of one place of a sample, in half precision, before it is rounded."""
        if not (self.is_pointwise and self.is_half):
            return 0
        sample = round_up(self.made, self.vector) * math.prod(self.result[2:]) * _FLOAT
        return torch.get_num_threads() * sample + ALIGNMENT

    def more_tables(self) -> int:
        """What kernels have beside in half precision, and over volumes."""
        return (_HALVES if self.is_half else 0) + (_PAGE if self.is_volumes and self.fills(self.channels) else 0)

    def from_one(self) -> int:
        """What the gradient of a transposed convolution that makes one channel is spread to."""
        if self.source[1] != 1:
            return 0
        if self.vector != LARGEST_VECTOR:
            return _STRIDING + (self.result_bytes if self.is_strided else 0)
        places = _PLACE * math.prod(self.result[2:])
        of_thread = _SPREAD + _SPREAD_STEP * (max(self.stride) - 1) + places
        return torch.get_num_threads() * of_thread + _PAGE * 2 + ALIGNMENT * self.result[1]

    def turned_samples(self) -> int:
        """A sample of what is read, with a border, and one of what is made, as each thread has them in bfloat16.

        Pairs of places are made. Groups are shared among threads.
        """
        across, steps = round_up(self.result[-1], 2), self.stride[-1]
        seen = (across - 1) * steps + (self.kernel[-1] - 1) * self.dilation[-1] + 1
        rows = self.source[-1] + (self.kernel[-1] - 1) * self.dilation[-1] + 2 * (steps - 1)
        wide = round_up(max(seen, rows), 2 * steps)
        wide += 2 * steps if self.is_volumes or (self.result[-1] % 2 and steps > 1) else 0
        source = round_up(self.channels, self.vector) * math.prod(self.source[2:-1]) * wide
        result = round_up(self.made, self.vector) * math.prod(self.result[2:-1]) * across
        tables = _TURNING + round_up(self.result[1], self.vector) * _FLOAT
        return self.threads_of_sums() * self.groups * (source + result) * self.element + tables

    def threads_of_sums(self) -> int:
        """How many threads have sums of the gradient of the whole weight: one, where each has groups of its own."""
        threads = torch.get_num_threads()
        return 1 if self.is_depthwise and self.groups >= threads * self.vector else threads

    def bias_in_blocks(self, block: int, *, is_filled: bool = False) -> int:
        """The bias, as floats, in whole blocks, or in one of each group; nothing where it is so."""
        if self.result[1] % block == 0 and not self.is_half and not is_filled:
            return 0
        return self.groups * round_up(self.made, block) * _FLOAT + ALIGNMENT


def has_tiles(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies tiles of a type."""
    return dtype is torch.bfloat16 and may_use_tiles()


def may_use_tiles() -> bool:
    """Whether this processor has tiles, and oneDNN is not told by the environment to do without."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "ALL"
    is_allowed = limit.upper() in ("ALL", "DEFAULT") or "AMX" in limit.upper()
    return is_allowed and torch.cpu._is_amx_tile_supported()


def round_up(count: int, block: int) -> int:
    """The next multiple of ``block``."""
    return -(-count // block) * block


def _lanes(count: int, vector: int) -> int:
    """So many channels are computed at once: up to four vectors."""
    return next((lanes for lanes in (vector, 2 * vector) if count <= lanes), 4 * vector)


def _for_each_place(sizes: Sequence[Any], kernel: tuple[int, ...]) -> tuple[int, ...]:
    return _numbers(sizes) if len(sizes) == len(kernel) else _numbers(sizes) * len(kernel)


def _numbers(sizes: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(concrete_size, sizes))
