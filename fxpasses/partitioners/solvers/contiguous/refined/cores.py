"""The core of a problem: some units are left out, and no pipeline costs more than with them.

A unit that is left out takes no seconds and no bytes, but what went through it still goes from its makers to its users:
a path of such units is cut before or after one of them, so the cheapest value on it crosses, wherever they run. Those
values have a maker in the core, and stand in for its own: one value of the core may be several, the cheapest of which
goes to all that is reached, and the others, with what is above, to those that are reached by dearer values only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = ["Core", "held_by", "mattering", "widest_first"]

Bools = NDArray[np.bool_]
Costs = dict[int, Floats]
"""For units of the core, what crosses at least on the way to them: leaving and entering for each class, ``(2, c)``."""

NOTHING_GIVEN: Mapping[int, int] = MappingProxyType({})
ALIKE = 1 - 1e-12
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
    """

    chosen: Ints
    units: Units
    classes: tuple[DeviceClass, ...]
    before: csr_array[np.float32]
    after: csr_array[np.float32]

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
        source, uses, costs = _values(units, classes, is_chosen, stands_for)
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
        )


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


def _values(
    units: Units, classes: tuple[DeviceClass, ...], is_chosen: Bools, stands_for: Mapping[int, int]
) -> tuple[Ints, Ints, Floats]:
    """The makers of the core's values, pairs (value, user), and costs ``(2, classes, values)``; units as numbered."""
    costs = np.array([[group.leaving for group in classes], [group.entering for group in classes]])
    direct, far = _reached(units, costs, is_chosen, stands_for)
    source: list[int] = []
    uses: list[tuple[int, int]] = []
    charged: list[Floats] = []
    for value in np.flatnonzero(is_chosen[units.source]).tolist():
        for users, cost in _charged(direct[value], far[value], costs[:, :, value]):
            uses += [(len(source), user) for user in users]
            source.append(int(units.source[value]))
            charged.append(cost)
    none = np.zeros((2, len(classes), 0))
    pairs = np.array(uses, dtype=np.int64).reshape(-1, 2)
    return np.array(source, dtype=np.int64), pairs, np.stack(charged, axis=2) if charged else none


def _reached(
    units: Units, costs: Floats, is_chosen: Bools, stands_for: Mapping[int, int]
) -> tuple[list[list[int]], list[Costs]]:
    """For each value its users in the core, and those that it reaches through units left out.

    A unit left out passes on one of the values that it uses, the given or the dearest one: when it runs before a cut,
    only its own values cross there, so they can stand in for no more than one.
    """
    direct = [[user for user in users if is_chosen[user]] for users in units.users]
    far: list[Costs] = [{} for _ in units.source]
    root, least = list(range(len(units.source))), list(np.moveaxis(costs, 2, 0))
    for unit in np.flatnonzero(~is_chosen).tolist():
        earlier = (value for value in units.used[unit] if units.source[value] < unit)
        ahead = [value for value in earlier if is_chosen[units.source[root[value]]]]
        if not ahead:
            continue
        first = stands_for.get(unit, -1)
        if first not in ahead:
            first = max(ahead, key=lambda value: float(least[value].sum()))
        reached = far[root[first]]
        for value in units.made[unit]:
            root[value], least[value] = root[first], np.minimum(least[first], least[value])
            for user in direct[value]:
                reached[user] = np.maximum(reached[user], least[value]) if user in reached else least[value]
    return direct, far


def _charged(own: list[int], far: Costs, cost: Floats) -> Iterator[tuple[list[int], Floats]]:
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
