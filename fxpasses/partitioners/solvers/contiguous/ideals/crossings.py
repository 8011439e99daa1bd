"""Which values are open at each ideal of a family, and which of them the next part must use."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily
from fxpasses.partitioners.solvers.contiguous.ideals.stretches import places_of
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["Crossings", "Forced", "cells_of", "counts_of"]

Bools = NDArray[np.bool_]


@attrs.frozen(eq=False)
class Crossings:
    """For each value (or shared key), how many of its users each ideal holds.

    Args:
        made: Whether an ideal holds the maker, ``(q, f)``; for shared keys always.
        count: How many users it holds, ``(q, f)``.
        users: How many there are, ``(q,)``.
    """

    made: Bools
    count: NDArray[np.int16]
    users: NDArray[np.int16]

    @classmethod
    def of(cls, made: Bools, pairs: Ints, family: CutFamily) -> Crossings:
        """Count, from pairs (value, user). Time O(pairs × ideals), along one order O(pairs + values × ideals)."""
        count = np.zeros(made.shape, dtype=np.int16)
        if family.is_nested:
            place = places_of(family.inside)[pairs[:, 1]]
            comes = place < family.count
            np.add.at(count, (pairs[comes, 0], place[comes]), 1)
            np.cumsum(count, axis=1, out=count)
        else:
            for value, user in pairs.tolist():
                count[value] += family.inside[user]
        return cls(made, count, np.bincount(pairs[:, 0], minlength=len(made)).astype(np.int16))

    @property
    def open(self) -> Bools:
        """Whether a value is made inside and used outside, ``(q, f)``."""
        return self.made & (self.count < self.users[:, None])

    @property
    def back(self) -> Bools:
        """Whether a value is made outside and used inside, ``(q, f)``: values of backward nodes."""
        return ~self.made & (self.count > 0)


@attrs.frozen(eq=False)
class Forced:
    """Values at an ideal that the next part must use, and those that the last part must have made, ``(q, f)``."""

    ahead: Bools
    behind: Bools

    @classmethod
    def of(cls, units: Units, inside: Bools, opened: Bools) -> Forced:
        """A part that comes next has a unit that is ready, one that came last has a unit that no other one needs."""
        ready, last = ~inside, inside.copy()
        for before, after in units.before.tolist():
            ready[after] &= inside[before]
            last[before] &= ~inside[after]
        used = np.zeros(opened.shape, dtype=np.int32)
        for value, user in units.uses.tolist():
            used[value] += ready[user]
        alone = last.sum(axis=0) == 1
        return cls(opened & (used == ready.sum(axis=0)), opened & last[units.source] & alone)


def cells_of(table: NDArray[Any], rows: Ints, columns: slice | Ints) -> NDArray[Any]:
    """Some rows and columns of a table, without a copy of whole rows. Time O(cells)."""
    is_slice = isinstance(columns, slice)
    cells: NDArray[Any] = table[:, columns][rows] if is_slice else table.take(rows[:, None] * table.shape[1] + columns)
    return cells


def counts_of(count: NDArray[np.int16], chosen: Bools) -> tuple[Ints, NDArray[np.int16]]:
    """Each pair (value, count) that occurs where chosen, once."""
    if not len(count):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int16)
    wide = int(count.max(initial=0)) + 1
    codes = np.unique((np.arange(len(count))[:, None] * wide + count)[chosen])
    return codes // wide, (codes % wide).astype(np.int16)
