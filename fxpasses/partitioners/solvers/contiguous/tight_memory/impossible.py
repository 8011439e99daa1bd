"""Prove that no pipeline fits the memories, when there are few ideals: which ones each set of devices can run.

That is the dynamic program over ideals with bytes alone: a row of yes and no for each set of devices (or each number of
devices of each class), so a step for a class is one product of matrices for all sets at once. A set that has not enough
room for an ideal, or leaves too little for what is left, is no step on the way.

Where there are too many ideals, only the heaviest units are asked about, in the order that all units leave them: a
pipeline of all units is one of these, too, and needs no fewer bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, all_ideals
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.contiguous.ideals.weighing import weighed
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Fits", "ancestors", "only", "pair_bytes"]

Bools = NDArray[np.bool_]

MAX_IDEALS = 2000
MOST_CHOSEN = 300
BLOCK = 256


@attrs.frozen(eq=False)
class Fits:
    """All pairs of ideals of a reduced problem, with the bytes of what lies between them.

    Args:
        size: Bytes between two ideals, ``inf`` where the second does not hold the first, ``(f, f)``.
        legal: For each class, whether it can run what lies between, or None where it can run everything.
        left: Bytes of what is outside of each ideal, ``(f,)``.
        classes: The devices.
        family: The ideals.
        chosen: The units that count; all of them where there are few ideals.
        is_whole: Whether all units count.
    """

    size: Floats
    legal: tuple[Bools | None, ...]
    left: Floats
    classes: tuple[DeviceClass, ...]
    family: CutFamily
    chosen: Ints
    is_whole: bool = True

    @classmethod
    def of(
        cls, units: Units, classes: tuple[DeviceClass, ...], limit: int = MAX_IDEALS, *, is_whole: bool = False
    ) -> Fits | None:
        """Prepare the pairs; None if even a few units have more than ``limit``, or all have if it ``is_whole``.

        Time O(ideals² × shared keys).
        """
        for chosen in itertools.islice(_choices(units), 1 if is_whole else None):
            own = units if len(chosen) == units.size else only(units, chosen)
            words = all_ideals(own, limit)
            if words is not None:
                return cls._over(own, classes, CutFamily.of(words, np.ones(own.size)), chosen, units.size)
        return None

    @classmethod
    def _over(cls, units: Units, classes: tuple[DeviceClass, ...], family: CutFamily, chosen: Ints, count: int) -> Fits:
        size = pair_bytes(units, family)
        legal = []
        for group in classes:
            banned = weighed(group.banned[chosen].astype(np.float64), family.inside)
            legal.append(banned[None, :] == banned[:, None] if group.banned[chosen].any() else None)
        left = np.append(size[:-1, -1], 0.0)
        return cls(size, tuple(legal), left, classes, family, chosen, len(chosen) == count)

    def decide(self, more: float, steps: float) -> tuple[bool | None, float]:
        """Whether the ideals lead to the whole graph when each device has some bytes more.

        Args:
            more: Bytes.
            steps: How many multiplications it may take.

        Returns:
            None when it took too many, or where only some units were asked about; and how many it took.
        """
        fits = [self._pairs(kind, more) for kind in range(len(self.classes))]
        sizes = np.array([len(group.devices) + 1 for group in self.classes])
        stride = np.concatenate([[1], np.cumprod(sizes)[:-1]])
        memory = np.array([group.memory + more for group in self.classes])
        used = np.zeros((1, len(sizes)), dtype=np.int64)
        reached = np.zeros((1, len(self.left)), dtype=bool)
        reached[0, 0] = True
        spent = 0.0
        for _step in range(int((sizes - 1).sum())):
            spent += len(used) * len(sizes) * float(len(self.left)) ** 2
            if spent > steps:
                return None, spent
            used, reached = self._one_more(used, reached, fits, sizes, stride)
            reached &= self.left <= _room(sizes - 1 - used, memory)[:, None]
            if reached[:, -1].any():
                return (True if self.is_whole else None), spent
            alive = reached.any(axis=1)
            used, reached = used[alive], reached[alive]
            if not len(used):
                break
        return False, spent

    def _pairs(self, kind: int, more: float) -> NDArray[np.float32]:
        fits = self.size <= self.classes[kind].memory + more
        if (legal := self.legal[kind]) is not None:
            fits &= legal
        return fits.astype(np.float32)

    def _one_more(
        self, used: Ints, reached: Bools, fits: list[NDArray[np.float32]], sizes: Ints, stride: Ints
    ) -> tuple[Ints, Bools]:
        """What each set of devices reaches with one more device of any class."""
        own = used @ stride
        free = [np.flatnonzero(used[:, kind] + 1 < size) for kind, size in enumerate(sizes.tolist())]
        codes = np.unique(np.concatenate([own[rows] + stride[kind] for kind, rows in enumerate(free)]))
        there = np.zeros((len(codes), reached.shape[1]), dtype=bool)
        for kind, rows in enumerate(free):
            place = np.searchsorted(codes, own[rows] + stride[kind])
            there[place] |= reached[rows].astype(np.float32) @ fits[kind] > 0
        return codes[:, None] // stride % sizes, there


def pair_bytes(units: Units, family: CutFamily) -> Floats:
    """Bytes between each two ideals, ``inf`` where the second does not hold the first, ``(f, f)``."""
    spans = Spans.of(_without_values(units), family, (_anything(units),), (0.0,))
    rows = [slice(first, first + BLOCK) for first in range(0, family.count, BLOCK)]
    return np.concatenate([spans.loads(row, slice(0, family.count), np.inf)[0] for row in rows])


def _choices(units: Units) -> Iterator[Ints]:
    """All units, then ever fewer of the heaviest."""
    yield np.arange(units.size)
    heavy = (units.kept + units.live).astype(np.float64)
    np.add.at(heavy, units.shares[:, 1], units.shared[units.shares[:, 0]])
    order = np.argsort(-heavy, kind="stable")
    count = min(MOST_CHOSEN, units.size - 1)
    while count >= 2:
        yield np.sort(order[:count])
        count = count * 4 // 5


def only(units: Units, chosen: Ints) -> Units:
    """Some units, in the order that all of them leave these."""
    place = np.full(units.size, -1, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    above = ancestors(units)
    pairs = [
        (int(place[other]), int(place[unit]))
        for unit in chosen.tolist()
        for other in chosen.tolist()
        if other != unit and above[unit] >> other & 1
    ]
    shares = units.shares[place[units.shares[:, 1]] >= 0]
    shares = np.stack([shares[:, 0], place[shares[:, 1]]], axis=1)
    return attrs.evolve(
        _without_values(units),
        unit_of=np.arange(len(chosen)),
        seconds=units.seconds[chosen],
        kept=units.kept[chosen],
        live=units.live[chosen],
        shares=shares,
        before=np.array(pairs, dtype=np.int64).reshape(-1, 2),
    )


def ancestors(units: Units) -> list[int]:
    """For each unit the bits of those that must not be on a later device, itself included."""
    above = [1 << unit for unit in range(units.size)]
    for unit, predecessors in enumerate(units.predecessors):
        for before in predecessors:
            above[unit] |= above[before]
    return above


def _room(free: Ints, memory: Floats) -> Floats:
    """Bytes of the devices that are free."""
    room: Floats = np.where(free > 0, free * np.where(free > 0, memory, 0.0), 0.0).sum(axis=1)
    return room


def _anything(units: Units) -> DeviceClass:
    """A device without a limit."""
    nothing = np.zeros(0)
    return DeviceClass((0,), np.zeros(units.size), np.zeros(units.size, dtype=bool), float("inf"), nothing, nothing)


def _without_values(units: Units) -> Units:
    """The same without what crosses: only bytes count."""
    empty = np.zeros((0, 2), dtype=np.int64)
    return attrs.evolve(units, source=empty[:, 0], uses=empty, outputs=empty)
