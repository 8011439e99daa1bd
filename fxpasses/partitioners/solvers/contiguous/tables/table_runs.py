"""Go along a table of pairs of ideals, compiled: what one more device makes of the best values so far.

Importing numba takes a fifth of a second, so this module is imported where tables are large.
"""

from __future__ import annotations

from fxpasses.partitioners.solvers import compiling
from fxpasses.partitioners.solvers.compiling import cached
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["lower"]


@cached(compiling)
def lower(load: Floats, rows: Ints, value: Floats, first: int, best: Floats, in_turn: bool) -> None:
    """Lower the best values to those by way of some rows; ``nan`` stays.

    Four rows at a time, as reading and writing the best values takes longer than what is between.

    Args:
        load: The load of each pair, ``(ideals, ideals)``.
        rows: The first ideals, ``(n,)``; not empty.
        value: Their values, ``(n,)``.
        first: The column of the first of the best values.
        best: The best value of each ideal, ``(c,)``.
        in_turn: Whether loads add up, or the largest counts.
    """
    last, stop = len(rows) - 1, first + len(best)
    for row in range(0, len(rows), 4):
        a, b, c, d = row, min(row + 1, last), min(row + 2, last), min(row + 3, last)
        loads_a, loads_b = load[rows[a], first:stop], load[rows[b], first:stop]
        loads_c, loads_d = load[rows[c], first:stop], load[rows[d], first:stop]
        for ideal in range(len(best)):
            if in_turn:
                one, two = loads_a[ideal] + value[a], loads_b[ideal] + value[b]
                three, four = loads_c[ideal] + value[c], loads_d[ideal] + value[d]
            else:
                one, two = max(loads_a[ideal], value[a]), max(loads_b[ideal], value[b])
                three, four = max(loads_c[ideal], value[c]), max(loads_d[ideal], value[d])
            found = min(min(one, two), min(three, four))
            best[ideal] = min(best[ideal], found)
