"""Loads of pairs of ideals where these are bytes, compiled: what devices need, and which of them have room.

Importing numba takes a fifth of a second, so this module is imported where it is loaded already.
"""

from __future__ import annotations

import numpy as np

from fxpasses.partitioners.solvers import compiling
from fxpasses.partitioners.solvers.compiling import cached, inlined
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["needed"]


@inlined
def _first_between(held: Words, holder: Words) -> int:
    """The first bit that the second row has and the first one has not; there is one."""
    for word in range(len(held)):
        bits = holder[word] & ~held[word]
        if bits:
            place = 64 * word
            while not bits & np.uint64(1):
                bits >>= np.uint64(1)
                place += 1
            return place
    return 0


@cached(compiling)
def needed(
    load: Floats,
    kept: tuple[Floats, Floats],
    keys: tuple[Floats, Floats],
    most: tuple[tuple[Floats, Floats], tuple[Floats, Floats]],
    live: Floats,
    by_live: tuple[Words, Words],
    numbers: tuple[Ints, Ints],
    words: tuple[Words, Words],
    classes: tuple[Floats, Floats],
    below: float,
    enough: float,
) -> None:
    """Write the bytes of each pair for each class, ``inf`` where they are not under a threshold or there is no room.

    Args:
        load: Where to, ``(classes, n, m)``.
        kept: What the units of the first ideals keep, ``(n,)``, and of the second ones, ``(m,)``.
        keys: The bytes of shared keys that are open at a first ideal, ``(n,)``, and of those of them that nothing
            between a pair names, ``(n, m)``, or ``(n, 0)``.
        most: The most bytes alive in each first ideal and in each second one; and outside of each.
        live: The bytes that units need while they run, falling.
        by_live: Which units each ideal holds, from the most bytes alive to the fewest, as bits; without any where none
            needs any.
        numbers: The numbers of the ideals: none holds one that comes later.
        words: Their units as bits, ``(n, w)`` and ``(m, w)``; without any where ideals hold those before them.
        classes: What does not count on each class of devices, and how much room it has, ``(classes,)``.
        below: The threshold.
        enough: More than that is under it for no class.
    """
    (first, second), (held, holder), (own, whole) = numbers, words, kept
    ((inside, until), (after, outside)), (opened, unnamed), (credit, memory) = most, keys, classes
    for row in range(load.shape[1]):
        for column in range(load.shape[2]):
            missing = np.uint64(0)
            for word in range(held.shape[1]):
                missing |= held[row, word] & ~holder[column, word]
            size = whole[column] - own[row]
            if missing or first[row] >= second[column] or size > enough:
                load[:, row, column] = np.inf
                continue
            if unnamed.shape[1]:
                size += opened[row] - unnamed[row, column]
            alive = min(until[column], after[row])
            is_known = until[column] > inside[row] or after[row] > outside[column]
            if by_live[0].shape[1] and not is_known and size <= enough:
                alive = live[_first_between(by_live[0][row], by_live[1][column])]
            size += alive
            for kind in range(load.shape[0]):
                value = max(size - credit[kind], 0.0)
                load[kind, row, column] = value if value < below and size <= memory[kind] else np.inf
