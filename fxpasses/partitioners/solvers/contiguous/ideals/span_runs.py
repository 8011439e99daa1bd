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

Bits = NDArray[np.uint64]


@cached(compiling)
def charged(
    load: Floats,
    saved: Floats,
    way: Ints,
    ends: tuple[Floats, Floats],
    weight: tuple[Floats, Floats],
    numbers: tuple[Ints, Ints],
    words: tuple[Bits, Bits],
    below: float,
    apart: Floats,
) -> None:
    """Write the load of each pair for each class, ``inf`` where it is not under a threshold or they are not nested.

    Args:
        load: Where to, ``(classes, n, m)``.
        saved: What is not charged of the values open at either ideal, ``(ways, n, m)``.
        way: In which of these ways each class is charged, ``(classes,)``.
        ends: What all values open at an ideal cost a class that starts there, ``(classes, n)``, and one that ends
            there, ``(classes, m)``.
        weight: The seconds of the first ideals, ``(classes, n)``, and of the second ones, ``(classes, m)``.
        numbers: The numbers of the ideals: none holds one that comes later.
        words: Their units as bits, ``(n, w)`` and ``(m, w)``; without any where ideals hold those before them.
        below: The threshold.
        apart: Room for what keeps each second ideal apart from a first one, ``(m,)``: ``inf``, or nothing.
    """
    (start, end), (before, after), (first, second), (held, holder) = ends, weight, numbers, words
    for row in range(load.shape[1]):
        for column in range(load.shape[2]):
            missing = np.uint64(0)  # looked at whole: a processor cannot guess which pairs are nested
            for word in range(held.shape[1]):
                missing |= held[row, word] & ~holder[column, word]
            apart[column] = float("inf") if missing or first[row] >= second[column] else 0.0
        for kind in range(load.shape[0]):
            own, less = load[kind, row], saved[way[kind], row]
            begins, weighs, until, whole = start[kind, row], before[kind, row], end[kind], after[kind]
            for column in range(load.shape[2]):
                value = max(begins + until[column] - less[column] + (whole[column] - weighs), 0.0) + apart[column]
                own[column] = value if value < below else float("inf")
