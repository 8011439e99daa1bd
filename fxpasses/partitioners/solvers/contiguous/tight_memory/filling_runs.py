"""Fill devices along one order, compiled.

Importing numba takes a fifth of a second, so this module is imported where there is much to fill.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers import compiling
from fxpasses.partitioners.solvers.compiling import cached
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["fill"]

Bools = NDArray[np.bool_]


@cached(compiling)
def fill(
    inside: Bools,
    room: Floats,
    allowed: Bools,
    order: Ints,
    before: tuple[Ints, Ints],
    size_of: tuple[Ints, Ints],
    keys: tuple[Ints, Ints],
    shared: Ints,
    holder: Ints,
) -> None:
    """Let one device for each row take along an order what is ready and fits.

    Args:
        inside: What is taken already; what is taken now is added, ``(n, m)``.
        room: The bytes of each device, ``(n,)``.
        allowed: What it can run, ``(n, m)``.
        order: The units, ``(m,)``.
        before: Where the predecessors of each unit begin and end, ``(m + 1,)``, and these.
        size_of: The bytes that each unit keeps, and those alive while it runs, ``(m,)``.
        keys: Where the shared keys of each unit begin and end, ``(m + 1,)``, and these.
        shared: The bytes of each key, ``(p,)``.
        holder: The last row that took each key, ``(p,)``; -1 at first.
    """
    (start, predecessors), (kept, alive), (first_key, named) = before, size_of, keys
    for row in range(len(inside)):
        size, live = 0.0, 0.0
        for unit in order:
            fits = allowed[row, unit] and not inside[row, unit]
            entry = start[unit]
            while fits and entry < start[unit + 1]:
                fits = inside[row, predecessors[entry]]
                entry += 1
            if not fits:
                continue
            more, most = size + kept[unit], max(live, float(alive[unit]))
            for place in range(first_key[unit], first_key[unit + 1]):
                if holder[named[place]] != row:
                    more += shared[named[place]]
            if more + most <= room[row]:
                inside[row, unit] = True
                size, live = more, most
                for place in range(first_key[unit], first_key[unit + 1]):
                    holder[named[place]] = row
