"""Ideals in blocks that hold much in common, so that few others are looked at as larger than some of a block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.crossings import cells_of
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["blocks_of", "larger"]

Bools = NDArray[np.bool_]


def blocks_of(family: CutFamily, ideals: Ints, most: int) -> list[Ints]:
    """Halve a set of ideals by the unit that comes nearest to half of them, until none has more than ``most``.

    Time O(ideals × units × log ideals) where they can be halved.
    """
    found, waiting = [], [(ideals, np.arange(len(family.inside)))] if len(ideals) else []
    while waiting:
        own, units = waiting.pop()
        if len(own) <= most:
            found.append(own)
            continue
        inside = cells_of(family.inside, units, own)
        held = np.count_nonzero(inside, axis=1)
        middle = int(np.argmin(np.abs(2 * held - len(own))))
        units = units[(held > 0) & (held < len(own))]  # what all of them hold, or none, tells no part of them apart
        waiting += [(own[inside[middle]], units), (own[~inside[middle]], units)]
    return found


def larger(family: CutFamily, block: Ints, open_to: Bools, reach: float) -> Ints:
    """The ideals of a set that hold what all of a block hold, and weigh at most ``reach`` more than one of it."""
    first = int(block.min()) + 1
    last = int(np.searchsorted(family.position, family.position[block].max() + reach, side="right"))
    near = np.flatnonzero(open_to[first:last]) + first
    common = np.bitwise_and.reduce(family.words[block], axis=0)
    for word in np.flatnonzero(common).tolist():
        near = near[family.words[near, word] & common[word] == common[word]]
    return near
