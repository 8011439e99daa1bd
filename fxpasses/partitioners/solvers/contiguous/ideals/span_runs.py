"""Loads of pairs of ideals, compiled: which of them stay under a threshold, and whether the second holds the first.

Importing numba takes a fifth of a second, so this module is imported where it is loaded already.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers import compiling
from fxpasses.partitioners.solvers.compiling import cached
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["charged"]

UNKNOWN, NESTED, APART = 0, 1, 2


@cached(compiling)
def charged(
    load: Floats,
    saved: Floats,
    ends: tuple[Floats, Floats],
    weight: tuple[Floats, Floats],
    numbers: tuple[Ints, Ints],
    words: tuple[NDArray[np.uint64], NDArray[np.uint64]],
    known: NDArray[np.uint8],
    below: float,
) -> None:
    """Write the load of each pair, ``inf`` where it is not under a threshold or the ideals are not nested.

    Args:
        load: Where to, ``(n, k)``.
        saved: What is not charged of the values open at either ideal, ``(n, k)``.
        ends: What all values open at an ideal cost one that starts there, ``(n,)``, and one that ends there, ``(k,)``.
        weight: The seconds of the first ideals, ``(n,)``, and of the second ones, ``(k,)``.
        numbers: The numbers of the ideals: none holds one that comes later.
        words: Their units as bits, ``(n, w)`` and ``(k, w)``; without any where ideals hold those before them.
        known: Which pairs are nested, as far as that was asked, ``(n, k)``; what is found is added.
        below: The threshold.
    """
    (start, end), (before, after), (first, second), (held, holder) = ends, weight, numbers, words
    for row in range(load.shape[0]):
        for column in range(load.shape[1]):
            value = max(start[row] + end[column] - saved[row, column] + (after[column] - before[row]), 0.0)
            load[row, column] = np.inf
            if not value < below:
                continue
            if known[row, column] == UNKNOWN:
                is_nested, word = first[row] < second[column], 0
                while is_nested and word < held.shape[1]:
                    is_nested = held[row, word] & ~holder[column, word] == 0
                    word += 1
                known[row, column] = NESTED if is_nested else APART
            if known[row, column] == NESTED:
                load[row, column] = value
