"""What values cost a device that runs from one ideal to another, for many pairs of ideals at once.

A value is charged where it leaves and where it enters. Whether that happens between ideals ``I`` and ``J`` is a sum of
products ``f(I) g(J)`` of 0 and 1, for example "the users of a value inside ``I`` are those inside ``J``" is the sum
over ``c`` of "``I`` holds ``c`` of them" times "``J`` holds ``c`` of them". So a block of pairs is one matrix product,
over the values that are open at ideals of both kinds in the block. Where each ideal holds the one before, running sums
do (:mod:`~fxpasses.partitioners.solvers.contiguous.ideals.stretches`).
"""

from __future__ import annotations

from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.crossings import Crossings, Forced, cells_of, counts_of
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.stretches import Stretches
from fxpasses.partitioners.solvers.contiguous.ideals.weighing import weighed
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Transfers", "steps_of_open"]

Bools = NDArray[np.bool_]

FEW_OPEN, OPEN_A_STEP = 64, 6
"""Values open at both ideals of a pair that take no steps beside those of the pair, and how many more take one."""


def steps_of_open(count: int) -> float:
    """The steps that values which are open at both ideals of a pair add to those of the pair, for one way to charge."""
    return max(0, count - FEW_OPEN) / OPEN_A_STEP


@attrs.frozen(eq=False)
class Transfers:
    """The values that are open at the ideals of a family.

    Args:
        classes: The devices.
        values: Which values each ideal makes, and how many of their users it holds.
        open: Whether a value is made inside and used outside, ``(q, f)``.
        back: Whether it is made outside and used inside.
        forced: Which of them the next part must use; None where it does not matter which part comes next.
        stretches: When nothing happens to values, where each ideal holds the one before.
        ends: For each class, what all values open at an ideal cost a device that ends there, ``(classes, f)``.
        starts: What they cost one that starts there.
    """

    classes: tuple[DeviceClass, ...]
    values: Crossings
    open: Bools
    back: Bools
    forced: Forced | None
    stretches: Stretches | None
    ends: Floats
    starts: Floats

    @classmethod
    def of(cls, units: Units, family: CutFamily, classes: tuple[DeviceClass, ...]) -> Transfers:
        """Count users. Time O((uses + values × classes) × ideals), without the uses along one order."""
        inside = family.inside
        values = Crossings.of(inside[units.source], units.uses, family)
        opened, back = values.open, values.back
        is_linked = any(group.to_next is not None or group.from_last is not None for group in classes)
        forced = Forced.of(units, inside, opened) if is_linked else None
        stretches = Stretches.of(units, inside) if family.is_nested else None
        return cls(classes, values, opened, back, forced, stretches, *_charges(classes, opened, back, forced))

    @cached_property
    def flows_back(self) -> bool:
        """Whether any value goes to an earlier device; asked for each block of pairs, found out once."""
        return bool(self.back.any())

    def passing(self, rows: slice | Ints, columns: slice | Ints) -> Bools | None:
        """Whether a local value is open, one way or the other, at both ideals of each pair."""
        local = next((group.local for group in self.classes if group.local is not None), None)
        if local is None:
            return None
        both = np.concatenate([self.open[local], self.back[local]]).astype(np.float32)
        passing: Bools = both[:, rows].T @ both[:, columns] > 0
        return passing

    def crossing(self, kind: int, rows: slice | Ints, columns: slice | Ints) -> Floats:
        """Seconds of the values that leave and enter, for each pair of nested ideals, ``(rows, columns)``."""
        charged: Floats = self.starts[kind][rows][:, None] + self.ends[kind][columns][None, :]
        return charged - self.saved(kind, rows, columns)

    def saved(self, kind: int, rows: slice | Ints, columns: slice | Ints) -> Floats:
        """What is not charged of the values open at either ideal, for each nested pair, ``(rows, columns)``."""
        group, left, right = self.classes[kind], list[Floats](), list[Bools]()
        if self.forced is not None:
            self._forced(group, self.forced, rows, columns, left, right)
        if self.stretches is not None:
            saved = self.stretches.saved(group, self._numbers(rows), self._numbers(columns))
            return saved + _product(left, right) if left else saved
        self._going_on(group, rows, columns, left, right)
        if self.flows_back:
            self._going_back(group, rows, columns, left, right)
        return _product(left, right)

    def going_on(self, rows: slice | Ints, columns: slice | Ints) -> Ints:
        """The values that are open at some of the first ideals and at some of the second ones."""
        numbers = sorted((self._numbers(rows), self._numbers(columns)), key=len)
        active = np.arange(len(self.open))
        for ideals in numbers:
            active = active[cells_of(self.open, active, ideals).any(axis=1)]
        return active

    def steps(self, rows: slice | Ints, columns: slice | Ints) -> float:
        """The steps that values add to those of each pair: none where running sums do."""
        if self.stretches is not None:
            return 0.0
        ways = len({group.charges for group in self.classes})
        return ways * steps_of_open(len(self.going_on(rows, columns)))

    def _numbers(self, chosen: slice | Ints) -> Ints:
        """The numbers of some ideals."""
        return np.arange(*chosen.indices(self.open.shape[1])) if isinstance(chosen, slice) else chosen

    def _going_on(
        self, group: DeviceClass, rows: slice | Ints, columns: slice | Ints, left: list[Floats], right: list[Bools]
    ) -> None:
        """Values that stay open: they were sent before, and enter no device that does not use them."""
        values, leaving, entering = self.values, group.leaving, group.entering
        active = self.going_on(rows, columns)
        opened, held = cells_of(self.open, active, rows), cells_of(values.count, active, rows)
        last = held == values.users[active][:, None] - 1  # only one user is left: none is used where it stays open
        scale = leaving[active][:, None] + last * entering[active][:, None]
        left.append((opened * scale).T)
        right.append(cells_of(self.open, active, columns))
        value, counted = counts_of(held, opened & ~last)
        unused = (held[value] == counted[:, None]) & opened[value]
        left.append(unused.T * entering[active[value]])
        right.append(cells_of(values.count, active[value], columns) == counted[:, None])

    def _forced(
        self,
        group: DeviceClass,
        forced: Forced,
        rows: slice | Ints,
        columns: slice | Ints,
        left: list[Floats],
        right: list[Bools],
    ) -> None:
        """Values that go to the next device are not sent by this one if they were made before."""
        if group.to_next is not None:
            opened = self.open[:, rows]
            active = np.flatnonzero(opened.any(axis=1) & (group.to_next > 0))
            left.append((opened[active] * group.to_next[active][:, None]).T)
            right.append(cells_of(forced.ahead, active, columns))
        if group.from_last is not None:
            own = forced.behind[:, rows]
            active = np.flatnonzero(own.any(axis=1) & (group.from_last > 0))
            left.append((own[active] * group.from_last[active][:, None]).T)
            right.append(cells_of(self.values.count, active, columns) == 0)

    def _going_back(
        self, group: DeviceClass, rows: slice | Ints, columns: slice | Ints, left: list[Floats], right: list[Bools]
    ) -> None:
        """Values that are made later than they are used: they leave the later device and enter the earlier one."""
        values = self.values
        back = self.back[:, rows]
        active = np.flatnonzero(back.any(axis=1))
        left.append(back[active].T * -group.leaving[active])
        used = cells_of(values.count, active, columns) == values.users[active][:, None]
        whole = cells_of(values.made, active, columns) & used
        right.append(whole)
        value, held = counts_of(cells_of(values.count, active, rows), back[active])
        chosen = active[value]
        left.append(((cells_of(values.count, chosen, rows) == held[:, None]) & back[chosen]).T * group.entering[chosen])
        right.append(
            (cells_of(values.count, chosen, columns) == held[:, None]) & ~cells_of(values.made, chosen, columns)
        )


def _product(left: list[Floats], right: list[Bools]) -> Floats:
    product: Floats = np.concatenate(left, axis=1) @ np.concatenate(right).astype(np.float64)
    return product


def _charges(
    classes: tuple[DeviceClass, ...], opened: Bools, back: Bools, forced: Forced | None
) -> tuple[Floats, Floats]:
    """For each class, what all values that are open at an ideal cost a device that ends there, or starts there."""
    known: dict[tuple[bytes, ...], tuple[Floats, Floats]] = {}
    found = []
    for group in classes:
        key = group.charges
        if key not in known:
            end, start = weighed(np.stack([group.leaving, group.entering]), opened)
            if back.any():
                end = end + weighed(group.entering, back)
            if forced is not None and group.to_next is not None:
                end = end + weighed(group.to_next, forced.ahead)
            if forced is not None and group.from_last is not None:
                start = start + weighed(group.from_last, forced.behind)
            known[key] = end, start
        found.append(known[key])
    return np.stack([end for end, _start in found]), np.stack([start for _end, start in found])
