"""The values of a core: what went through units left out stands in for what their makers in the core send.

A path of units left out is cut before or after one of them, so the cheapest value on it crosses, wherever they run.
Those values have a maker in the core, and stand in for its own: one value of the core may be several, the cheapest of
which goes to all that is reached, and the others, with what is above, to those that are reached by dearer values only.

A device between the maker and all that is reached pays nothing for that. But if it runs one of the units on the way,
something enters it that they need, and something leaves it: that is their toll.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["NOTHING_GIVEN", "StandIns"]

Bools = NDArray[np.bool_]
Costs = dict[int, Floats]
"""For units of the core, what crosses at least on the way to them: leaving and entering for each class, ``(2, k)``."""

NOTHING_GIVEN: Mapping[int, int] = MappingProxyType({})
LEAVING, ENTERING = 0, 1
ALIKE = 1 - 1e-12


@attrs.frozen(eq=False)
class StandIns:
    """The units that are left out, each on the way of one value of the core at most, and of one that goes back.

    When a unit runs before a cut, only its own values cross there, so they can stand in for no more than one; and those
    that come back from behind it, as gradients do, for another one.

    Args:
        units: All units.
        is_chosen: Which are in the core, ``(m,)``.
        costs: What values cost, leaving and entering, for each class of devices, ``(2, k, q)``.
        root: The value that each value stands in for; itself if its maker is in the core, ``(q,)``.
        least: The cheapest on the way from that one to it, ``(2, k)`` each.
        passes_on: The value that each unit left out passes on, if any; without those that come back.
        direct: The users of each value in the core.
        far: Those that it reaches through units left out.
    """

    units: Units
    is_chosen: Bools
    costs: Floats
    root: list[int]
    least: list[Floats]
    passes_on: dict[int, int]
    direct: list[list[int]]
    far: list[Costs]

    @classmethod
    def of(
        cls, units: Units, classes: tuple[DeviceClass, ...], is_chosen: Bools, stands_for: Mapping[int, int]
    ) -> StandIns:
        """Follow the values through the units left out, which pass on the given or the dearest ones.

        A unit passes on one of the values that it uses, and one of those that come back to it where such are exchanged,
        as the gradients of what it makes.
        """
        costs = np.array([[group.leaving for group in classes], [group.entering for group in classes]])
        direct = [[user for user in users if is_chosen[user]] for users in units.users]
        root, least = list(range(len(units.source))), list(np.moveaxis(costs, 2, 0))
        found = cls(units, is_chosen, costs, root, least, {}, direct, [{} for _ in units.source])
        left_out = np.flatnonzero(~is_chosen).tolist()
        found.passes_on.update(found._follow(left_out, stands_for, are_back=False))
        found._follow(left_out[::-1], NOTHING_GIVEN, are_back=True)
        return found

    def _follow(self, order: list[int], stands_for: Mapping[int, int], *, are_back: bool) -> dict[int, int]:
        """Let units pass on a value in an order in which they come by them: all that go back, or all others."""
        passed, source = {}, self.units.source.tolist()
        for unit in order:
            near = (value for value in self.units.used[unit] if self._is_back[value] == are_back)
            ahead = [value for value in near if (source[value] > unit) == are_back and self._has_root(value)]
            if not ahead:
                continue
            first = stands_for.get(unit, -1)
            if first not in ahead:
                first = max(ahead, key=lambda value: float(self.least[value].sum()))
            passed[unit], reached = first, self.far[self.root[first]]
            for value in self.units.made[unit]:
                if self._is_back[value] == are_back:
                    self.root[value] = self.root[first]
                    self.least[value] = least = np.minimum(self.least[first], self.least[value])
                    for user in self.direct[value]:
                        reached[user] = np.maximum(reached[user], least) if user in reached else least
        return passed

    def _has_root(self, value: int) -> bool:
        """Whether a value stands in for one of the core."""
        return bool(self.is_chosen[self.units.source[self.root[value]]])

    @cached_property
    def _is_back(self) -> list[bool]:
        """Whether all users of a value come before its maker, as those of a gradient."""
        makers = self.units.source.tolist()
        return [bool(users) and max(users) < maker for users, maker in zip(self.units.users, makers, strict=True)]

    def values(self) -> tuple[Ints, Ints, Floats]:
        """The makers of the core's values, pairs (value, user), and costs ``(2, k, values)``; units as numbered."""
        source: list[int] = []
        uses: list[tuple[int, int]] = []
        costs: list[Floats] = []
        for value, charged in enumerate(self._charged):
            for users, cost in charged:
                uses += [(len(source), user) for user in users]
                source.append(int(self.units.source[value]))
                costs.append(cost)
        none = np.zeros((2, self.costs.shape[1], 0))
        pairs = np.array(uses, dtype=np.int64).reshape(-1, 2)
        return np.array(source, dtype=np.int64), pairs, np.stack(costs, axis=2) if costs else none

    def tolls(self) -> tuple[Ints, Floats]:
        """The value of the core that goes through each unit, ``(m,)``, and the toll of each value, ``(k, values)``.

        That is the one which goes to all that is reached. -1 for units in the core, and those that nothing goes through
        to a unit of the core.
        """
        last = np.cumsum([len(charged) for charged in self._charged]) - 1
        through = np.full(self.units.size, -1)
        toll = np.full((self.costs.shape[1], int(last[-1]) + 1 if len(last) else 0), np.inf)
        onward: dict[int, Floats] = {}  # what leaves at least on the way from a value on that leads furthest, (k,)
        for unit in reversed(np.flatnonzero(~self.is_chosen).tolist()):
            used = self.passes_on.get(unit, -1)
            onwards = (value for value in self.units.made[unit] if not self._is_back[value])
            ways = [way for value in onwards for way in self._ways(value, onward)]
            if used >= 0 and ways:
                leaves = np.maximum.reduce(ways)
                onward[used] = np.maximum(onward[used], leaves) if used in onward else leaves
                through[unit] = value = last[self.root[used]]
                toll[:, value] = np.minimum(toll[:, value], self.least[used][ENTERING] + leaves)
        return through, np.where(np.isfinite(toll), toll, 0.0)

    def _ways(self, value: int, onward: Mapping[int, Floats]) -> Iterator[Floats]:
        """What leaves at least on the way from the maker of a value to units of the core: at once, and further on."""
        own = self.costs[LEAVING, :, value]
        if self.direct[value]:
            yield own
        if value in onward:
            yield np.minimum(own, onward[value])

    @cached_property
    def _charged(self) -> list[list[tuple[list[int], Floats]]]:
        """For each value what is charged for it in the core; nothing if its maker is not there."""
        makers = self.units.source.tolist()
        return [
            list(_levels(direct, far, self.costs[:, :, value])) if self.is_chosen[maker] else []
            for value, (maker, direct, far) in enumerate(zip(makers, self.direct, self.far, strict=True))
        ]


def _levels(own: list[int], far: Costs, cost: Floats) -> Iterator[tuple[list[int], Floats]]:
    """A value of the core as several: users, each with all that is reached for no less, and what they cost besides."""
    levels = [(own, cost)] if own else []
    for unit, each in sorted(far.items(), key=lambda item: (-float(item[1].sum()), item[0])):
        least = np.minimum(levels[-1][1], each) if levels else each
        if levels and (least >= levels[-1][1] * ALIKE).all():
            levels[-1][0].append(unit)
        else:
            levels.append(([unit], least))
    reached: set[int] = set()
    for (users, level), (_cheaper, less) in itertools.pairwise([*levels, ([], np.zeros_like(cost))]):
        reached.update(users)
        yield sorted(reached), level - less
