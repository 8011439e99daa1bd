"""The core of a problem: some units are left out, and no pipeline costs more than with them.

A unit that is left out takes no seconds and no bytes, but what went through it still goes from its makers to its users
(:mod:`~fxpasses.partitioners.solvers.contiguous.refined.stand_ins`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.refined.stand_ins import NOTHING_GIVEN, StandIns
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["Core", "held_by", "mattering", "widest_first"]

Bools = NDArray[np.bool_]
LIGHT = 8
"""Units of this part of the mean weight, or less, are all alike light."""
CROSSING, FREE = 2.0, 2
"""How many times a second of what crosses matters as much as a second of a unit, as it is there wherever the cut is;
and over how many cuts any value goes."""


@attrs.frozen(eq=False)
class Core:
    """Some units of a problem, numbered anew in the same order.

    Args:
        chosen: Their numbers in the problem, ``(m,)``.
        units: The units; they stand for no nodes.
        classes: What they and their values weigh on each class of devices.
        before: For each unit left out, the last of the core that it needs, ``(m - c, c)``, sparse.
        after: The first of the core that need it.
        through: The value of the core that goes through each unit left out, ``(m - c,)``; -1 for none.
        toll: What a device of each class pays that runs any of these while the value passes it by, ``(k, q)``.
    """

    chosen: Ints
    units: Units
    classes: tuple[DeviceClass, ...]
    before: csr_array[np.float32]
    after: csr_array[np.float32]
    through: Ints
    toll: Floats

    @classmethod
    def of(
        cls,
        units: Units,
        classes: tuple[DeviceClass, ...],
        is_chosen: Bools,
        stands_for: Mapping[int, int] = NOTHING_GIVEN,
    ) -> Core:
        """Leave out the others. Time O(units + uses), and more where many paths lead through units left out.

        ``stands_for`` is the value that a unit left out should stand in for, where that can be; else it is the dearest.
        """
        chosen = np.flatnonzero(is_chosen)
        number = np.cumsum(is_chosen) - 1
        stand_ins = StandIns.of(units, classes, is_chosen, stands_for)
        source, uses, costs = stand_ins.values()
        through, toll = stand_ins.tolls()
        before, after = _nearest(units, is_chosen)
        shares = units.shares[is_chosen[units.shares[:, 1]]]
        core = Units(
            unit_of=np.zeros(0, dtype=np.int64),
            seconds=units.seconds[chosen],
            kept=units.kept[chosen],
            live=units.live[chosen],
            shared=units.shared,
            shares=np.stack([shares[:, 0], number[shares[:, 1]]], axis=1),
            before=number[_pairs(after, chosen)],
            source=number[source],
            uses=np.stack([uses[:, 0], number[uses[:, 1]]], axis=1),
            outputs=np.zeros((0, 2), dtype=np.int64),
        )
        left_out, shape = np.flatnonzero(~is_chosen), (units.size - len(chosen), len(chosen))
        return cls(
            chosen,
            core,
            tuple(_of_core(group, chosen, costs[:, kind]) for kind, group in enumerate(classes)),
            _relation(number, shape, _pairs(before, left_out)),
            _relation(number, shape, _pairs(after, left_out)),
            through[left_out],
            toll,
        )

    def along(self, rest: Floats) -> tuple[Ints, csr_array[np.float64]]:
        """The values of the core that go through units left out, and for each the weight of these, ``(t, m - c)``."""
        from scipy.sparse import csr_array

        units = np.flatnonzero(self.through >= 0)
        values, row = np.unique(self.through[units], return_inverse=True)
        return values, csr_array((rest[units], (row, units)), shape=(len(values), len(rest)))


def _of_core(group: DeviceClass, chosen: Ints, costs: Floats) -> DeviceClass:
    weight, banned = group.weight[chosen], group.banned[chosen]
    return attrs.evolve(group, weight=weight, banned=banned, leaving=costs[0], entering=costs[1])


def _nearest(units: Units, is_chosen: Bools) -> tuple[list[set[int]], list[set[int]]]:
    """For each unit the chosen units before it, and those after it, with only units left out between them."""
    before: list[set[int]] = [set() for _ in range(units.size)]
    after: list[set[int]] = [set() for _ in range(units.size)]
    for unit, predecessors in enumerate(units.predecessors):
        for needed in predecessors:
            before[unit] |= {needed} if is_chosen[needed] else before[needed]
    for unit in reversed(range(units.size)):
        for needed in units.predecessors[unit]:
            after[needed] |= {unit} if is_chosen[unit] else after[unit]
    return before, after


def _pairs(near: list[set[int]], chosen: Ints) -> Ints:
    pairs = [(unit, other) for unit in chosen.tolist() for other in sorted(near[unit])]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _relation(number: Ints, shape: tuple[int, int], pairs: Ints) -> csr_array[np.float32]:
    """Pairs of a unit left out and one of the core as a matrix."""
    from scipy.sparse import csr_array

    rows = pairs[:, 0] - number[pairs[:, 0]] - 1  # as many are left out before it
    return csr_array((np.ones(len(pairs), dtype=np.float32), (rows, number[pairs[:, 1]])), shape=shape)


def held_by(units: Units) -> Bools:
    """For each pair of units whether each ideal that holds the second holds the first, ``(m, m)``."""
    held = np.zeros((units.size, units.size), dtype=bool)
    for unit, predecessors in enumerate(units.predecessors):
        for before in predecessors:
            held[:, unit] |= held[:, before]
            held[before, unit] = True
    return held


def mattering(units: Units, classes: tuple[DeviceClass, ...], load: Floats, weight: Floats, held: Bools) -> Floats:
    """How much each unit matters to where pipelines are cut, ``(m,)``: its own weight, and what it sends.

    A value that is used early and late crosses all that is between, so it counts once for each cut that may be there
    beyond the first two, though its maker weighs nothing: a mask. Values that span fewer are like their neighbours.
    ``load`` is what each class pays for a second, ``weight`` what units cost.
    """
    devices = sum(len(group.devices) for group in classes)
    prices = [pays * (group.leaving + group.entering) for pays, group in zip(load, classes, strict=True)]
    begins = np.searchsorted(units.uses[:, 0], np.arange(len(units.source)))
    after = (held @ weight)[units.uses[:, 1]]  # what needs each user
    far = np.maximum.reduceat(after, begins) - np.minimum.reduceat(after, begins) if len(begins) else np.zeros(0)
    sent, total = np.zeros(units.size), float(weight.sum()) or 1.0
    np.maximum.at(sent, units.source, np.mean(prices, axis=0) * np.maximum(devices * far / total - FREE, 0))
    matters: Floats = weight + (float(weight.mean()) or 1.0) / LIGHT + CROSSING * sent
    return matters


def widest_first(held: Bools, matters: Floats) -> list[int]:
    """The units in the order in which to leave them out until the others stand in a row.

    The next one is the one that stands beside the most of those that are left, for what it matters.
    """
    beside = ~held & ~held.T
    np.fill_diagonal(beside, False)
    count, order = beside.sum(axis=1).astype(np.float64), []
    while count.max() >= 1:
        unit = int(np.argmax(np.where(count >= 1, count / matters, 0.0)))
        order.append(unit)
        count -= beside[unit]
        count[unit] = 0.0
    return order
