"""Gradients of weights that threads add up apart, and what they turn to do so."""

from __future__ import annotations

import math

import torch

from fxpasses.partitioners.costs.kernels.convolution_kernels import has_own_kernel
from fxpasses.partitioners.costs.kernels.convolution_shapes import Convolution
from fxpasses.partitioners.costs.kernels.processor_blocks import ALIGNMENT, FLOAT, LARGEST_VECTOR, round_up

__all__ = ["sums_in_floats", "sums_of_threads"]

_TURNING = 9000
"""Bytes of tables where operands are turned."""
_WAITING = 8192
"""Bytes with which threads wait for each other where they share what is turned."""
_BARRIERS, _FAR_MORE = 21_000, 8
"""Bytes with which threads that sum up apart wait for each other; they do from so many times as many places on."""
_PAGE = 4096
"""More of these bytes, over volumes with shorter vectors."""


def sums_of_threads(shapes: Convolution, weight: int) -> int:
    """Gradients of a weight that threads sum up apart, and with which they wait for each other.

    They do it where there are fewer blocks of channels than threads, or far more places than weights.
    """
    threads = torch.get_num_threads()
    if threads == 1 or shapes.is_half or shapes.is_depthwise:
        return 0
    blocks = shapes.groups * -(-shapes.channels // shapes.vector) * -(-shapes.made // shapes.vector)
    laid_out = shapes.in_blocks(shapes.source, shapes.vector) + shapes.in_blocks(shapes.result, shapes.vector)
    has_rest = blocks % threads != 0 and blocks < 2 * threads
    apart = threads if has_rest or laid_out > _FAR_MORE * weight else -(-threads // blocks)
    has_more = shapes.is_volumes and shapes.vector != LARGEST_VECTOR
    return (apart - 1) * weight + _BARRIERS + (_PAGE if has_more else 0)


def sums_in_floats(shapes: Convolution, weight: int, *, keeps_channels: bool = False) -> int:
    """In bfloat16 the gradient of the weight is added up in floats, most times from samples that are turned.

    What is read stays as it is if ``keeps_channels`` says that its channels do.
    """
    if shapes.dtype is not torch.bfloat16:
        return 0
    is_small = shapes.is_depthwise and has_own_kernel(shapes)
    threads = torch.get_num_threads() if is_small else _threads_of_sums(shapes)
    sums = threads * (weight * torch.float32.itemsize // shapes.element + ALIGNMENT * 4)
    return sums + (0 if is_small else _turned_samples(shapes, keeps_channels=keeps_channels))


def _turned_samples(shapes: Convolution, *, keeps_channels: bool) -> int:
    """A sample of what is read, with a border, and one of what is made, as each thread has them in bfloat16.

    Pairs of places are made. Groups are shared among threads.
    """
    across, steps = round_up(shapes.result[-1], 2), shapes.stride[-1]
    seen = (across - 1) * steps + (shapes.kernel[-1] - 1) * shapes.dilation[-1] + 1
    border = round_up(max(1, (shapes.kernel[-1] - 1) * shapes.dilation[-1]), 2)
    wide = max(round_up(seen, 2 * steps), round_up(-(-shapes.source[-1] // steps) + border, 2) * steps)
    wide += 2 * steps if shapes.is_volumes else 0
    source = 0 if keeps_channels else round_up(shapes.channels, shapes.vector) * math.prod(shapes.source[2:-1]) * wide
    result = round_up(shapes.made, shapes.vector) * math.prod(shapes.result[2:-1]) * across
    tables = _TURNING + round_up(shapes.result[1], shapes.vector) * FLOAT
    if keeps_channels and torch.get_num_threads() > 1:
        tables += _WAITING
    return _threads_of_sums(shapes) * shapes.groups * (source + result) * shapes.element + tables


def _threads_of_sums(shapes: Convolution) -> int:
    """How many threads have sums of the gradient of the whole weight: one, where each has groups of its own."""
    threads = torch.get_num_threads()
    return 1 if shapes.is_depthwise and shapes.groups >= threads * shapes.vector else threads
