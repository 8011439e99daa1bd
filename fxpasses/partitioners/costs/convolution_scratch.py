"""What convolutions on the CPU need for themselves while they run: operands in oneDNN's layout, unfolded columns.

The dispatcher does not see it: kernels ask the allocator. Which kernel runs is what torch says for this process: it
depends on types and shapes, on the number of threads, and on the processor.

Source: oneDNN's developer guide, "Understanding Memory Formats"; sizes agree with what torch's allocator was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from fxpasses.partitioners.tensor_sizes import concrete_size

__all__ = ["convolution_backward_scratch_bytes", "convolution_scratch_bytes"]

_FEW_CHANNELS = 4
"""So many input channels stay as they are: images."""
_ALIGNMENT, _PAGE = 128, 4096
_SUMS, _STRIDING = 4, 12_300
"""How many gradients of a weight each thread has, and bytes of the tables of a strided kernel."""
_VOLUMES = 5
"""Dimensions of a batch of volumes."""
_BACKENDS: Any = torch._C._ConvBackend  # type: ignore[attr-defined]  # torch does not say
_BORDER = 1.15
"""A result of a strided transposed convolution is made with a border, and trimmed."""


@attrs.frozen
class _Convolution:
    """A convolution of ``(batch, channels, *places)`` with numbers for sizes; what it takes is beside its result."""

    given: tuple[int, ...]
    weight: tuple[int, ...]
    result: tuple[int, ...]
    groups: int
    element: int
    is_transposed: bool
    is_strided: bool
    is_padded: bool
    is_dilated: bool

    @classmethod
    def of(cls, given: Tensor, weight: Tensor, settings: Sequence[Any], result: Tensor) -> _Convolution:
        stride, padding, dilation, is_transposed, _more, groups = settings
        return cls(
            given=_shape(given),
            weight=_shape(weight),
            result=_shape(result),
            groups=groups,
            element=given.element_size(),
            is_transposed=is_transposed,
            is_strided={*map(concrete_size, stride)} != {1},
            is_padded={*map(concrete_size, padding)} != {0},
            is_dilated={*map(concrete_size, dilation)} != {1},
        )

    @property
    def is_depthwise(self) -> bool:
        return self.groups == self.given[1] > 1

    @property
    def is_pointwise(self) -> bool:
        """Whether each place of the result comes from one of the input."""
        return math.prod(self.weight[2:]) == 1 and not self.is_padded

    @property
    def given_bytes(self) -> int:
        return math.prod(self.given) * self.element

    @property
    def result_bytes(self) -> int:
        return math.prod(self.result) * self.element

    @property
    def weight_bytes(self) -> int:
        return math.prod(self.weight) * self.element

    @property
    def column_bytes(self) -> int:
        """What each place of the kernel sees at each place of a sample, in one group."""
        places = self.given[2:] if self.is_transposed else self.result[2:]
        return self.weight[1] * math.prod(self.weight[2:]) * math.prod(places) * self.element

    def unfolded(self, samples: int) -> int:
        """With the columns of so many samples, for one group after the other."""
        by_group = self.result_bytes if self.groups > 1 else 0  # put together in the end
        return samples * self.column_bytes + by_group

    def in_columns(self, threads: int) -> int:
        """Where each thread has the columns of one group and one sample, and the result is then laid out."""
        return max(threads * self.column_bytes + _ALIGNMENT, self.result_bytes)

    def fills(self, block: int) -> bool:
        """Whether the channels of each group fill blocks, or there is one group, or one for each channel."""
        channels, made = self.given[1] // self.groups, self.result[1] // self.groups
        return self.groups == 1 or channels == made == 1 or channels % block == made % block == 0

    def in_blocks(self, block: int, threads: int) -> int:
        """With the operands in oneDNN's layout, in which channels fill blocks; then the result is laid out."""
        own, result = self.result_bytes, self._padded(self.result, block)
        is_image = self.given[1] <= _FEW_CHANNELS and not self.is_depthwise and not self.is_transposed
        given = 0 if is_image else self._padded(self.given, block)
        bias = _up(self.result[1], block) * self.element + _ALIGNMENT
        laid_out = given + self._padded_weight(block, is_image) + bias + result
        if self.is_transposed:
            laid_out += int(result * _BORDER)
        laid_out += self._picked(block, threads)
        is_volumes = self.is_depthwise and len(self.result) == _VOLUMES
        is_made_twice = (self.is_transposed and self.is_strided) or is_volumes
        return max(laid_out - own, result + (own if is_made_twice else 0))

    def backward_in_blocks(self, block: int, threads: int) -> tuple[int, int]:
        """What a backward takes, with its gradients: while it makes that of the input, and that of the weight."""
        given, result = self._padded(self.given, block), self._padded(self.result, block)
        both = given + result + self._padded_weight(block, is_image=False)
        bias = 2 * _up(self.result[1], block) * self.element + _ALIGNMENT
        picked = self._picked(block, threads)
        spread = _STRIDING + threads * 2 * _STRIDING if self.is_strided else 0
        spread_out = given + (2 if self.is_strided else 1) * self.given_bytes
        for_input = max(both + max(picked, spread), spread_out)
        for_weight = max(both + picked + bias, self._padded_weight(block, is_image=False) + self.weight_bytes)
        return for_input, for_weight

    def backward_in_columns(self, threads: int) -> tuple[int, int]:
        """The same where each thread has columns, and sums of its own."""
        for_input = max(threads * self.column_bytes + _ALIGNMENT, self.given_bytes) + self.given_bytes
        each = _SUMS * self.weight_bytes + self.column_bytes + 2 * _ALIGNMENT
        return for_input, self.weight_bytes + threads * each

    @property
    def is_small(self) -> bool:
        """Whether the input is smaller than the kernel."""
        return any(place < kernel for place, kernel in zip(self.given[2:], self.weight[2:], strict=True))

    def in_order(self, threads: int) -> int:
        """Where channels come last, as oneDNN likes them: with the weight in its layout, twice."""
        return 2 * self.weight_bytes + (threads + 1) * (_PAGE + _ALIGNMENT)

    def _picked(self, block: int, threads: int) -> int:
        """The places of a sample that a strided kernel of one place sees, for each thread."""
        if self.is_transposed or not (self.is_pointwise and self.is_strided):
            return 0
        return threads * _up(self.given[1], block) * math.prod(self.result[2:]) * self.element

    def _padded(self, shape: tuple[int, ...], block: int) -> int:
        batch, channels, *places = shape
        return batch * _up(channels, block) * math.prod(places) * self.element

    def _padded_weight(self, block: int, is_image: bool) -> int:
        kernel = math.prod(self.weight[2:]) * self.element
        if self.is_depthwise:
            return _up(self.groups, block) * self.weight[1] * kernel
        channels, made = self.given[1] // self.groups, self.result[1] // self.groups
        return self.groups * _up(made, block) * (channels if is_image else _up(channels, block)) * kernel


def convolution_scratch_bytes(args: Sequence[Any], result: Tensor) -> int:
    """What a convolution needs beside its operands and its result.

    Args:
        args: Those of ``aten.convolution``.
        result: What it makes.

    Returns:
        Bytes; 0 on other devices than the CPU, of whose kernels nothing is known.
    """
    given, weight, _bias, *settings = args
    return _scratch_bytes(given, weight, settings, result, _in_onednn)


def convolution_backward_scratch_bytes(args: Sequence[Any], _result: Any) -> int:
    """The same of its backward, beside the gradients: ``args`` are those of ``aten.convolution_backward``."""
    gradient, given, weight, _biases, *settings, mask = args

    def in_onednn(convolution: _Convolution) -> int:
        return _backward_in_onednn(convolution, for_given=mask[0], for_weight=mask[1])

    return _scratch_bytes(given, weight, settings, gradient, in_onednn)


def _scratch_bytes(
    given: Tensor,
    weight: Tensor,
    settings: Sequence[Any],
    result: Tensor,
    in_onednn: Callable[[_Convolution], int],
) -> int:
    """By the kernel that torch takes; ``in_onednn`` says what oneDNN's needs where channels come first."""
    if given.device.type != "cpu" or 0 in result.shape:
        return 0
    chosen = torch._C._select_conv_backend(given, weight, None, *settings)
    convolution = _Convolution.of(given, weight, settings, result)
    if chosen in (_BACKENDS.Slow2d, _BACKENDS.Slow3d):
        is_unfolded = convolution.is_pointwise and not convolution.is_strided and convolution.groups == 1
        return 0 if is_unfolded else convolution.unfolded(convolution.given[0])
    if chosen in (_BACKENDS.SlowTranspose2d, _BACKENDS.SlowTranspose3d):
        return convolution.unfolded(convolution.given[0])
    if chosen in (_BACKENDS.SlowDilated2d, _BACKENDS.SlowDilated3d):
        return convolution.unfolded(1)
    if chosen != _BACKENDS.Mkldnn and not convolution.is_transposed:  # torch has no name for the transposed one
        return 0
    if _has_channels_last(given, weight):
        return convolution.in_order(torch.get_num_threads())
    return in_onednn(convolution)


def _in_onednn(convolution: _Convolution) -> int:
    block, threads = _block(), torch.get_num_threads()
    return convolution.in_blocks(block, threads) if convolution.fills(block) else convolution.in_columns(threads)


def _backward_in_onednn(convolution: _Convolution, *, for_given: bool, for_weight: bool) -> int:
    """One gradient after the other: that of the input is there while that of the weight is made."""
    block, threads = _block(), torch.get_num_threads()
    first, second = convolution.backward_in_columns(threads)
    if convolution.fills(block):
        first, in_blocks = convolution.backward_in_blocks(block, threads)
        second = second if convolution.is_small or convolution.is_dilated else in_blocks
    given = convolution.given_bytes if for_given else 0
    most = max(first if for_given else 0, given + second if for_weight else 0)
    return max(0, most - given - (convolution.weight_bytes if for_weight else 0))


def _has_channels_last(*operands: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return any(
        each.dim() in formats and each.is_contiguous(memory_format=formats[each.dim()]) and not each.is_contiguous()
        for each in operands
    )


def _block() -> int:
    """How many channels lie together: as many floats as the processor computes with at once."""
    return 16 if torch.backends.cpu.get_cpu_capability().startswith("AVX512") else 8


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(map(concrete_size, tensor.shape))


def _up(count: int, block: int) -> int:
    return -(-count // block) * block
