"""A convolution as oneDNN sees it: sizes of its operands, and of the layouts in which kernels on the CPU want them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from fxpasses.partitioners.costs.kernels.processor_blocks import (
    ALIGNMENT,
    FLOAT,
    LARGEST_VECTOR,
    has_tiles,
    lanes,
    round_up,
    vector_size,
)
from fxpasses.partitioners.tensor_sizes import concrete_size

__all__ = ["Convolution"]

_SMALLEST_BLOCK = 4
_VOLUMES = 5
"""Dimensions of a batch of volumes."""
_BORDER = 6
"""The widest border that kernels of one channel a group know."""
_WIDEST = 13
"""The most places in a row of a kernel that sees a border, which kernels know."""
_LEAST_FILLED = 16
"""Three vectors are computed at once where one of so many channels is left empty."""
_TILE_PAIRS = 32
"""Channels fill tiles of so many."""


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
        return self.element < FLOAT

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel makes one of its own."""
        return self.groups > 1 and self.channels == self.made == 1

    @property
    def is_strided(self) -> bool:
        """Whether it leaves out places."""
        return {*self.stride} != {1}

    @property
    def is_patches(self) -> bool:
        """Whether each place is seen once: the kernel is as large as its steps, and sees all places of the source."""
        return self.kernel == self.stride and not self.is_padded and not self.is_dilated

    @property
    def is_padded(self) -> bool:
        """Whether it sees places around the source."""
        return {*self.padding} != {0}

    @property
    def is_dilated(self) -> bool:
        """Whether the places that it sees lie apart."""
        return {*self.dilation} != {1} and {*self.kernel} != {1}

    @property
    def has_tiles(self) -> bool:
        """Whether it is computed with tiles, as all are in bfloat16 but those of one channel a group."""
        return has_tiles(self.dtype) and not self.is_depthwise

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
        """Whether a dilated kernel reaches across the source, or one over volumes further: few kernels know such.

        Nor do they know steps that see nothing of it, one place that is said to lie apart, and wide borders of one
        channel a group.
        """
        sizes = zip(self.source[2:], self.kernel, self.dilation, strict=True)
        left = min(place - (kernel - 1) * apart - 1 for place, kernel, apart in sizes)
        reaches = left <= 0 if self.is_dilated else left < 0 and self.is_volumes
        is_one_place = math.prod(self.kernel) == 1 and {*self.dilation} != {1}
        return reaches or self._sees_nothing or self._has_wide_border or is_one_place

    @property
    def is_bordered(self) -> bool:
        """Whether one channel a group sees a wide border of an image, and that is all that is unusual.

        What large processors have for it is known; of smaller ones the hungriest kernel counts.
        """
        is_usual = {*self.dilation} == {1} and not (self.is_volumes or self._sees_nothing)
        return self._has_wide_border and is_usual and self.vector == LARGEST_VECTOR

    @property
    def _has_wide_border(self) -> bool:
        return self.is_depthwise and max(self.padding) > _BORDER

    @property
    def is_wide(self) -> bool:
        """Whether a long row of a kernel sees a border, in floats: kernels for many places of the result know none."""
        is_long = self.kernel[-1] > _WIDEST and self.padding[-1] > 0
        return is_long and not (self.is_half or self.is_depthwise or self.reaches_beyond)

    @property
    def is_too_wide(self) -> bool:
        """Whether a kernel has so long a row that no other than one that unfolds makes the gradient of its weight."""
        return self.is_wide or (self.kernel[-1] > _WIDEST + 1 and not (self.is_half or self.is_depthwise))

    @property
    def _sees_nothing(self) -> bool:
        """Whether the first step may see nothing of the source."""
        sizes = zip(self.kernel, self.padding, self.dilation, strict=True)
        return any((kernel - 1) * apart < padded for kernel, padded, apart in sizes)

    @property
    def grows(self) -> bool:
        """Whether it makes more places than it reads, not just one more."""
        return any(made > place + 1 for made, place in zip(self.result[2:], self.source[2:], strict=True))

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
        return vector_size()

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

    def in_blocks(self, shape: tuple[int, ...], block: int) -> int:
        """An operand in which channels fill blocks."""
        batch, channels, *places = shape
        return batch * round_up(channels, block) * math.prod(places) * self.element

    def weight_in_blocks(self, block: int, *, keeps_channels: bool = False) -> int:
        """The weight likewise; what the kernel reads stays as it is where channels are few."""
        if self.is_depthwise:
            return round_up(self.groups, block) * self.kernel_bytes
        kept = round_up(self.channels, 2) if self.dtype is torch.bfloat16 else self.channels  # in pairs
        channels = kept if keeps_channels else round_up(self.channels, block)
        return self.groups * round_up(self.made, block) * channels * self.kernel_bytes

    def weight_in_order(self, along: int, other: int, *, is_padded: bool = False) -> int:
        """The weight for a kernel that knows channels last, which makes ``along`` channels of ``other`` in a group.

        With tiles many channels are padded, and few, if ``is_padded`` says so.
        """
        if self.is_depthwise:
            return self.weight_of_channels(is_filled=False)
        if self.fills(other):  # several vectors of what is made at once
            if has_tiles(self.dtype) and (other > self.vector or is_padded):
                other = round_up(other, _TILE_PAIRS)
            filled = round_up(along, lanes(along, self.vector))
            three = round_up(along, 3 * self.vector)
            if self.is_pointwise and not self.is_half and (three - along) * _LEAST_FILLED <= along:
                filled = max(filled, three)  # three vectors at once, where hardly any is left empty
            other = round_up(other, 2) if self.is_half else other  # in pairs
            return self.groups * filled * other * self.kernel_bytes
        if self.channels == self.made and self.block:
            return self.groups * (round_up(along, self.vector) if self.is_half else along) * other * self.kernel_bytes
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

    @property
    def is_uneven(self) -> bool:
        """Whether what is read is no multiple of the stride."""
        return any(size % stride for size, stride in zip(self.source[2:], self.stride, strict=True))

    def bias_in_blocks(self, block: int, *, is_filled: bool = False) -> int:
        """The bias, as floats, in whole blocks, or in one of each group; nothing where it is so."""
        if self.result[1] % block == 0 and not self.is_half and not is_filled:
            return 0
        return self.groups * round_up(self.made, block) * FLOAT + ALIGNMENT


def _for_each_place(sizes: Sequence[Any], kernel: tuple[int, ...]) -> tuple[int, ...]:
    return _numbers(sizes) if len(sizes) == len(kernel) else _numbers(sizes) * len(kernel)


def _numbers(sizes: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(concrete_size, sizes))
