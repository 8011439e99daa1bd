"""Numbers in a row of which ranges are raised and lowered, and the largest of them at any time."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["RaisedRanges"]

_LEAST = np.iinfo(np.int64).min // 2
"""Below all numbers, however often it is raised: it fills the last block."""


class RaisedRanges:
    """A row that is cut into about as many blocks as each has numbers: a range takes O(sqrt(n)).

    What raises all of a block is written down once for it; only in the two blocks where a range begins and ends the
    numbers themselves are raised.
    """

    def __init__(self, numbers: NDArray[np.int64]) -> None:
        self._width = max(1, math.isqrt(len(numbers)))
        blocks = -(-len(numbers) // self._width)
        padded = np.pad(numbers, (0, blocks * self._width - len(numbers)), constant_values=_LEAST)
        self._blocks = padded.reshape(blocks, self._width)
        self._raised = np.zeros(blocks, dtype=np.int64)
        self._largest = self._blocks.max(axis=1)

    @property
    def largest(self) -> int:
        """The largest number."""
        return int(self._largest.max())

    def add(self, start: int, stop: int, amount: int) -> None:
        """Raise the numbers from ``start`` on, up to and without ``stop``, by an amount, which may be negative."""
        if start >= stop:
            return
        (first, begin), (last, end) = divmod(start, self._width), divmod(stop, self._width)
        if first == last:
            self._add_in(first, begin, end, amount)
            return
        if begin:
            self._add_in(first, begin, self._width, amount)
            first += 1
        if end:
            self._add_in(last, 0, end, amount)
        self._raised[first:last] += amount
        self._largest[first:last] += amount

    def _add_in(self, block: int, start: int, stop: int, amount: int) -> None:
        self._blocks[block, start:stop] += amount
        self._largest[block] = self._blocks[block].max() + self._raised[block]
