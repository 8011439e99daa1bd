"""Which unit joins a core next: one that splits few of its ideals, for what it matters.

A unit splits an ideal of the core that may hold it, but need not. Many units split hardly any of the ideals that are
left once their neighbours have joined; such a unit costs nothing and makes the bound tighter. How many ideals a unit
splits is counted on a sample of them: sets of ideals are whole numbers, with a bit for each.
"""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words, unpack
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = ["Joining"]

SAMPLE = 256
"""Ideals that are looked at."""
FEW = 0.05
"""A share of the ideals; units that split fewer than that are told apart by what they matter."""


class Joining:
    """A core that units join, and a sample of its ideals; each ideal that a unit splits then holds it or does not.

    Args:
        units: All units.
        matters: How much each matters, ``(m,)``.
        chosen: Which are in the core, ``(m,)``.
        words: The ideals of the core, as bits of all units.
    """

    def __init__(self, units: Units, matters: Floats, chosen: NDArray[np.bool_], words: Words) -> None:
        sample = np.ascontiguousarray(words[:: -(-len(words) // SAMPLE)])
        rows = np.packbits(unpack(sample, units.size).T, axis=1, bitorder="little")
        self._units, self._matters, self._count = units, matters, len(sample)
        self._must = [int.from_bytes(row.tobytes(), "little") for row in rows]  # which ideals must hold each unit
        self._may = list(self._must)  # which may hold it: no others, if it is in the core
        self._left_out, self._score = (~chosen).tolist(), np.full(units.size, np.inf)
        self._draw = random.Random(0)
        every = np.flatnonzero(~chosen).tolist()
        for unit in every:
            self._may[unit] = self._allowed(unit)
        for unit in reversed(every):
            self._must[unit] = self._needed(unit)
        self._rate(every)

    def next(self) -> int:
        """The unit that joins next; it is then in the core."""
        unit = int(np.argmin(self._score))
        either = self._may[unit] & ~self._must[unit]
        self._must[unit] |= either & self._draw.getrandbits(self._count)
        self._may[unit] = self._must[unit]
        self._left_out[unit], self._score[unit] = False, np.inf
        self._rate({*self._after(unit), *self._before(unit)})
        return unit

    def _allowed(self, unit: int) -> int:
        """The ideals that hold, or may hold, all that a unit needs."""
        needs = (self._may[each] for each in self._units.predecessors[unit])
        return functools.reduce(operator.and_, needs, (1 << self._count) - 1)

    def _needed(self, unit: int) -> int:
        """The ideals that hold, or must hold, something that needs a unit."""
        return functools.reduce(operator.or_, (self._must[each] for each in self._units.successors[unit]), 0)

    def _after(self, unit: int) -> list[int]:
        """The units left out that fewer ideals may hold than before, as one joined that they need."""
        changed = [unit]
        for each in changed:
            for later in self._units.successors[each]:
                if self._left_out[later] and (allowed := self._allowed(later)) != self._may[later]:
                    self._may[later] = allowed
                    changed.append(later)
        return changed[1:]

    def _before(self, unit: int) -> list[int]:
        """The units left out that more ideals must hold, as one joined that needs them."""
        changed = [unit]
        for each in changed:
            for earlier in self._units.predecessors[each]:
                if self._left_out[earlier] and (needed := self._needed(earlier)) != self._must[earlier]:
                    self._must[earlier] = needed
                    changed.append(earlier)
        return changed[1:]

    def _rate(self, units: Iterable[int]) -> None:
        for unit in units:
            splits = (self._may[unit] & ~self._must[unit]).bit_count() / self._count
            self._score[unit] = (splits + FEW) / self._matters[unit]
