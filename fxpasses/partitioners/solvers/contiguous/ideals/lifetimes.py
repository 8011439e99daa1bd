"""What is on a device while it runs some operators of a graph, one after the other in one order.

What came from elsewhere is there from the beginning to the end of what the device runs; what it makes is there from the
operator that makes it to the last one that uses it, or to the end if another device uses it, too.
"""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["Arrival", "Lifetime", "Lifetimes"]

Bools = NDArray[np.bool_]


@attrs.frozen
class Lifetime:
    """Something that an operator makes.

    Args:
        size: Bytes.
        touched: The operators that make and use it, rising.
        is_kept: Whether it is there to the end in any case.
    """

    size: int
    touched: tuple[int, ...]
    is_kept: bool


@attrs.frozen
class Arrival:
    """Something that devices have a copy of that use it and do not make it.

    Args:
        size: Bytes.
        maker: The unit that makes it; None where no unit does.
        users: The units that use it besides.
    """

    size: int
    maker: int | None
    users: tuple[int, ...]


@attrs.frozen(eq=False, slots=False)
class Lifetimes:
    """What operators need, make and use.

    Args:
        unit: The unit of each operator, in the order in which they run, ``(o,)``.
        own: What each needs for itself, ``(o,)``.
        made: What they make.
        arrivals: What comes from elsewhere.
        remade: What they make that others may make again: it is there only as long as the device itself uses it.
    """

    unit: Ints
    own: Ints
    made: tuple[Lifetime, ...]
    arrivals: tuple[Arrival, ...]
    remade: tuple[Lifetime, ...] = ()

    def of_core(self, is_chosen: Bools) -> Lifetimes:
        """The same of some units, numbered anew; no device needs more for it than with the others.

        What the others make is left out, and what they use is free before they do; so is what is made again.
        """
        number, runs = np.cumsum(is_chosen) - 1, is_chosen[self.unit]
        place = np.cumsum(runs) - 1
        made = tuple(
            attrs.evolve(each, touched=tuple(int(place[at]) for at in each.touched if runs[at]))
            for each in self.made
            if runs[each.touched[0]]
        )
        arrivals = (
            attrs.evolve(
                each,
                maker=None if each.maker is None else int(number[each.maker]),
                users=tuple(int(number[unit]) for unit in each.users if is_chosen[unit]),
            )
            for each in self.arrivals
            if each.maker is None or is_chosen[each.maker]
        )
        used = tuple(each for each in arrivals if each.users)
        return Lifetimes(number[self.unit[runs]], self.own[runs], made, used)

    @cached_property
    def new(self) -> Ints:
        """The bytes that each operator makes, ``(o,)``."""
        sizes = np.zeros(len(self.unit), dtype=np.int64)
        for each in self.made:
            sizes[each.touched[0]] += each.size
        return sizes

    @cached_property
    def freed(self) -> tuple[tuple[tuple[int, int, tuple[int, ...]], ...], ...]:
        """For each operator what may be free after it: bytes, the unit that makes it and the others that touch it."""
        found: list[list[tuple[int, int, tuple[int, ...]]]] = [[] for _ in self.unit]
        for each in self.made:
            units = dict.fromkeys(int(self.unit[at]) for at in each.touched)
            maker, *others = units
            if not each.is_kept:
                found[each.touched[-1]].append((each.size, maker, tuple(others)))
        return tuple(map(tuple, found))

    @property
    def most(self) -> int:
        """The most that is there while one device runs all; time O(operators and what they make)."""
        alive = sum(each.size for each in self.arrivals if each.maker is None)
        most = alive
        for new, own, freed in zip(self.new.tolist(), self.own.tolist(), self.freed, strict=True):
            alive += new
            most = max(most, alive + own)
            alive -= sum(size for size, _maker, _users in freed)
        return most
