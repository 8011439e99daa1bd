"""What products of groups need on the CPU: they are computed one after the other, each as a product of matrices.

Where one group ends and the next begins is in the data. So the largest there can be counts: one that has all rows, or a
row less, which may fill no whole blocks, or as many as each has of groups of one size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from fxpasses.partitioners.costs.kernels.product_scratch import product_scratch_bytes
from fxpasses.partitioners.tensor_sizes import concrete_size

__all__ = ["grouped_scratch_bytes"]

_SEVERAL = 3
"""Dimensions of operands that have a matrix for each group."""


def grouped_scratch_bytes(args: Sequence[Any], result: Any) -> int:
    """What the product of the group that needs most has beside its operands and its result."""
    left, right = args[:2]
    if left.dim() == right.dim() == _SEVERAL:
        return product_scratch_bytes((left, right), result)
    offsets: Tensor = args[2]
    count = max(1, concrete_size(offsets.shape[0]))
    return max(product_scratch_bytes(each, result) for each in _groups(left, right, count))


def _groups(left: Tensor, right: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The operands of a group that has everything, of one that lacks a little, and of one that has its share."""
    every = concrete_size(right.shape[1] if left.dim() == _SEVERAL else left.shape[0 if right.dim() == _SEVERAL else 1])
    for size in {every, max(1, every - 1), -(-every // count)}:
        if left.dim() == _SEVERAL:
            yield left[0], right.narrow(1, 0, size)
        elif right.dim() == _SEVERAL:
            yield left.narrow(0, 0, size), right[0]
        else:
            yield left.narrow(1, 0, size), right.narrow(0, 0, size)
