"""Loads of pairs of ideals, compiled: which of them stay under a threshold, and whether the second holds the first.

Importing numba takes a fifth of a second, so this module is imported where it is loaded already.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers import compiling
from fxpasses.partitioners.solvers.compiling import cached, inlined
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
    """
    (start, end), (before, after), (first, second), (held, holder) = ends, weight, numbers, words
    for row in range(load.shape[1]):
        for kind in range(load.shape[0]):
            own, less = load[kind, row], saved[way[kind], row]
            begins, weighs, until, whole = start[kind, row], before[kind, row], end[kind], after[kind]
            for column in range(load.shape[2]):
                value = max(begins + until[column] - less[column] + (whole[column] - weighs), 0.0)
                own[column] = value if value < below else float("inf")
        for column in range(load.shape[2]):
            if first[row] < second[column] and _holds(holder[column], held[row]):
                continue
            for kind in range(load.shape[0]):
                load[kind, row, column] = float("inf")


@inlined
def _holds(words: Bits, others: Bits) -> bool:
    """Whether an ideal holds another one."""
    word = 0
    while word < len(others) and not others[word] & ~words[word]:
        word += 1
    return word == len(others)
