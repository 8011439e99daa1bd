"""What the difference of two ideals weighs on one device, for many pairs of ideals at once: seconds and bytes.

A value is charged where it leaves and where it enters, a shared key where it is named. Whether that happens between
ideals ``I`` and ``J`` is a sum of products ``f(I) g(J)`` of 0 and 1, for example "the users of a value inside ``I`` are
those inside ``J``" is the sum over ``c`` of "``I`` holds ``c`` of them" times "``J`` holds ``c`` of them". So the loads
of a block of pairs are one matrix product, over the few values that are open in the block.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.crossings import Crossings, Forced
from fxpasses.partitioners.solvers.contiguous.cutting import CutFamily, unpack
from fxpasses.partitioners.solvers.contiguous.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.pairs import Pairs
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Spans"]

Bools = NDArray[np.bool_]
CHUNK = 20_000
BEYOND = 4.0
"""How many times all seconds a unit counts that only the first ideal of a pair holds."""


@attrs.frozen(eq=False)
class Spans:
    """A family of ideals prepared for questions about pairs of them.

    ``by_bytes`` says that the load of a device is its bytes, less a credit for each class.
    """

    units: Units
    family: CutFamily
    classes: tuple[DeviceClass, ...]
    credit: tuple[float, ...] | None
    values: Crossings
    shared: Crossings
    open: Bools
    back: Bools
    weight: tuple[Floats, ...]
    banned: tuple[Floats | None, ...]
    kept: Floats
    before: Floats
    after: Floats
    by_live: Bools | None
    live: Floats
    ends: tuple[Floats, ...]
    starts: tuple[Floats, ...]
    forced: Forced | None

    @classmethod
    def of(
        cls,
        units: Units,
        family: CutFamily,
        classes: tuple[DeviceClass, ...],
        credit: tuple[float, ...] | None = None,
    ) -> Spans:
        """Sum up what each ideal holds. Time O((units × classes + uses) × ideals)."""
        inside = family.inside
        values = Crossings.of(inside[units.source], units.uses, inside)
        everywhere = np.ones((len(units.shared), family.count), dtype=bool)
        falling = np.argsort(-units.live, kind="stable")
        live = units.live[falling].astype(np.float64)
        has_live = bool(units.live.any())
        is_linked = any(group.to_next is not None or group.from_last is not None for group in classes)
        forced = Forced.of(units, inside, values.open) if is_linked else None
        rows = np.ascontiguousarray(inside[falling].T) if has_live else None
        return cls(
            units,
            family,
            classes,
            credit,
            values,
            Crossings.of(everywhere, units.shares, inside),
            values.open,
            values.back,
            tuple(group.weight @ inside for group in classes),
            tuple(group.banned.astype(np.float64) @ inside if group.banned.any() else None for group in classes),
            units.kept.astype(np.float64) @ inside,
            _largest(rows, live, family.count),
            _largest(None if rows is None else ~rows, live, family.count),
            rows,
            live,
            *_charges(classes, values.open, values.back, forced),
            forced,
        )

    def nested(self, rows: slice | Ints, columns: slice | Ints) -> Bools:
        """Whether the second ideal holds the first and is not the same, for each pair."""
        first, second = self._numbers(rows), self._numbers(columns)
        larger: Bools = first[:, None] < second[None, :]
        if self.family.is_nested:
            return larger
        held = self.family.inside[:, rows]
        units = np.flatnonzero(held.any(axis=1) & ~self._held_by_all(columns))
        missing = ~_cells(self.family.inside, units, columns)
        larger &= held[units].astype(np.float32).T @ missing.astype(np.float32) == 0
        return larger

    def loads(self, rows: slice | Ints, columns: slice | Ints, below: float) -> list[Floats]:
        """The load of one device of each class for each pair, ``inf`` where it is not under ``below`` or not legal."""
        nested = self.nested(rows, columns)
        if self.credit is not None:
            return self._by_bytes(rows, columns, nested, self.credit, below)
        found = []
        passing = self._passing(rows, columns)
        crossing: dict[tuple[bytes, ...], Floats] = {}
        for kind, group in enumerate(self.classes):
            key = group.charges
            if key not in crossing:
                crossing[key] = self._crossing(kind, rows, columns)
            load = crossing[key] + (self.weight[kind][columns][None, :] - self.weight[kind][rows][:, None])
            np.maximum(load, 0.0, out=load)
            legal = (load < below) & self._meant(group, nested, passing)
            if (banned := self.banned[kind]) is not None:
                legal &= banned[columns][None, :] == banned[rows][:, None]
            found.append(np.where(legal, load, np.inf))
        if self.is_tight:
            pairs = Pairs.where(np.logical_or.reduce([np.isfinite(load) for load in found]))
            size = self.sizes(rows, columns, pairs)
            for load, group in zip(found, self.classes, strict=True):
                load.ravel()[pairs.cells[size > group.memory]] = np.inf
        return found

    def under(self, rows: Ints, columns: Ints, below: float) -> list[Bools]:
        """For each class, which pairs are legal and stay under a threshold (up to rounding): less work than loads."""
        if self.credit is not None:
            return [np.isfinite(load) for load in self.loads(rows, columns, below)]
        nested, found = self.nested(rows, columns), []
        passing = self._passing(rows, columns)
        crossing: dict[tuple[bytes, ...], Floats] = {}
        for kind, group in enumerate(self.classes):
            key = group.charges
            if key not in crossing:
                crossing[key] = self._crossing(kind, rows, columns)
            fine = crossing[key] + self.weight[kind][columns][None, :] < below + self.weight[kind][rows][:, None]
            fine &= self._meant(group, nested, passing)
            if (banned := self.banned[kind]) is not None:
                fine &= banned[columns][None, :] == banned[rows][:, None]
            found.append(fine)
        if self.is_tight:
            pairs = Pairs.where(np.logical_or.reduce(found))
            size = self.sizes(rows, columns, pairs)
            for fine, group in zip(found, self.classes, strict=True):
                fine.ravel()[pairs.cells[size > group.memory]] = False
        return found

    @cached_property
    def flows_back(self) -> bool:
        """Whether any value goes to an earlier device; asked for each block of pairs, found out once."""
        return bool(self.back.any())

    @cached_property
    def is_tight(self) -> bool:
        """Whether bytes matter: some device has not room for everything."""
        everything = float(self.kept[-1] + self.units.shared.sum() + self.live[:1].sum())
        return self.credit is not None or everything > min(group.memory for group in self.classes)

    def _by_bytes(
        self, rows: slice | Ints, columns: slice | Ints, nested: Bools, credit: tuple[float, ...], below: float
    ) -> list[Floats]:
        pairs = Pairs.where(nested)
        size = np.zeros(nested.shape)
        size.ravel()[pairs.cells] = self._bytes(rows, columns, pairs, -1.0, below + max(credit))
        found = []
        for kind, group in enumerate(self.classes):
            load = np.maximum(size - credit[kind], 0.0)
            legal = nested & (load < below) & (size <= group.memory)
            if (banned := self.banned[kind]) is not None:
                legal &= banned[columns][None, :] == banned[rows][:, None]
            found.append(np.where(legal, load, np.inf))
        return found

    def _numbers(self, chosen: slice | Ints) -> Ints:
        """The numbers of some ideals."""
        return np.arange(*chosen.indices(self.family.count)) if isinstance(chosen, slice) else chosen

    def _passing(self, rows: slice | Ints, columns: slice | Ints) -> Bools | None:
        """Whether a local value is open, one way or the other, at both ideals of each pair."""
        local = next((group.local for group in self.classes if group.local is not None), None)
        if local is None:
            return None
        both = np.concatenate([self.open[local], self.back[local]]).astype(np.float32)
        passing: Bools = both[:, rows].T @ both[:, columns] > 0
        return passing

    @staticmethod
    def _meant(group: DeviceClass, nested: Bools, passing: Bools | None) -> Bools:
        """The nested pairs that a class is about."""
        if passing is None or group.passed is None:
            return nested
        return nested & (passing if group.passed else ~passing)

    def left(self, rows: Ints, columns: Ints, below: float) -> list[Floats]:
        """The seconds that a device of each class has left under a threshold, for each pair; below 0 if not nested.

        Bytes are not looked at. All is one product of matrices, where loads ask for each pair whether it is nested.
        """
        inside, found = self.family.inside, []
        held = inside[:, rows]
        units = np.flatnonzero(held.any(axis=1) & ~self._held_by_all(columns))
        missing = ~_cells(inside, units, columns)
        never = BEYOND * (below + max(float(weight[-1]) for weight in self.weight))
        products: dict[tuple[bytes, ...], Floats] = {}
        for kind, group in enumerate(self.classes):
            if group.charges not in products:
                left, right = self._passed_on(kind, rows, columns)
                factors = np.concatenate([held[units].T * -never, *left], axis=1)
                products[group.charges] = factors @ np.concatenate([missing, *right]).astype(np.float64)
            rest = products[group.charges] + (below + self.weight[kind][rows] - self.starts[kind][rows])[:, None]
            rest -= (self.weight[kind][columns] + self.ends[kind][columns])[None, :]
            if (banned := self.banned[kind]) is not None:
                rest[banned[columns][None, :] != banned[rows][:, None]] = -never
            found.append(rest)
        return found

    def seconds(self, rows: slice | Ints, columns: slice | Ints, pairs: Pairs) -> list[Floats]:
        """The load of one device of each class for some nested pairs, ``(n,)``; ``inf`` where it cannot run a unit.

        Bytes are not looked at, nor which values pass a class by.
        """
        found = []
        saved: dict[tuple[bytes, ...], Floats] = {}
        for kind, group in enumerate(self.classes):
            if group.charges not in saved:
                saved[group.charges] = pairs.of(self._saved(kind, rows, columns))
            load = (self.weight[kind][columns] + self.ends[kind][columns])[pairs.last]
            load -= pairs.by_first(self.weight[kind][rows] - self.starts[kind][rows])
            load -= saved[group.charges]
            if (banned := self.banned[kind]) is not None:
                load[banned[columns][pairs.last] != pairs.by_first(banned[rows])] = np.inf
            found.append(load)
        return found

    def sizes(self, rows: slice | Ints, columns: slice | Ints, pairs: Pairs, *, is_exact: bool = False) -> Floats:
        """The bytes of some nested pairs, ``(n,)``; unless exact, small ones may be too large, but fit everywhere."""
        memory = [group.memory for group in self.classes]
        return self._bytes(rows, columns, pairs, -1.0 if is_exact else min(memory), max(memory))

    def _held_by_all(self, columns: slice | Ints) -> Bools:
        """The units that all of some ideals hold."""
        common = np.bitwise_and.reduce(self.family.words[columns], axis=0)
        held: Bools = unpack(common[None], self.units.size)[0]
        return held

    def _crossing(self, kind: int, rows: slice | Ints, columns: slice | Ints) -> Floats:
        """Seconds of the values that leave and enter, for each pair of nested ideals, ``(rows, columns)``."""
        charged: Floats = self.starts[kind][rows][:, None] + self.ends[kind][columns][None, :]
        return charged - self._saved(kind, rows, columns)

    def _saved(self, kind: int, rows: slice | Ints, columns: slice | Ints) -> Floats:
        """What is not charged of the values open at either ideal, for each pair, ``(rows, columns)``."""
        left, right = self._passed_on(kind, rows, columns)
        saved: Floats = np.concatenate(left, axis=1) @ np.concatenate(right).astype(np.float64)
        return saved

    def _passed_on(self, kind: int, rows: slice | Ints, columns: slice | Ints) -> tuple[list[Floats], list[Bools]]:
        """The same as products ``(rows, ·) (·, columns)``."""
        group, values = self.classes[kind], self.values
        leaving, entering = group.leaving, group.entering
        opened = self.open[:, rows]
        active = np.flatnonzero(opened.any(axis=1))
        held = _cells(values.count, active, rows)
        last = held == values.users[active][:, None] - 1  # only one user is left: none is used where it stays open
        scale = leaving[active][:, None] + last * entering[active][:, None]
        left, right = [(opened[active] * scale).T], [_cells(self.open, active, columns)]
        value, counted = _counts(held, opened[active] & ~last)
        unused = (held[value] == counted[:, None]) & opened[active[value]]
        left.append(unused.T * entering[active[value]])
        right.append(_cells(values.count, active[value], columns) == counted[:, None])
        if self.forced is not None:
            self._forced(group, self.forced, rows, columns, left, right)
        if self.flows_back:
            self._going_back(group, rows, columns, left, right)
        return left, right

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
            right.append(_cells(forced.ahead, active, columns))
        if group.from_last is not None:
            own = forced.behind[:, rows]
            active = np.flatnonzero(own.any(axis=1) & (group.from_last > 0))
            left.append((own[active] * group.from_last[active][:, None]).T)
            right.append(_cells(self.values.count, active, columns) == 0)

    def _going_back(
        self, group: DeviceClass, rows: slice | Ints, columns: slice | Ints, left: list[Floats], right: list[Bools]
    ) -> None:
        """Values that are made later than they are used: they leave the later device and enter the earlier one."""
        values = self.values
        back = self.back[:, rows]
        active = np.flatnonzero(back.any(axis=1))
        left.append(back[active].T * -group.leaving[active])
        used = _cells(values.count, active, columns) == values.users[active][:, None]
        whole = _cells(values.made, active, columns) & used
        right.append(whole)
        value, held = _counts(_cells(values.count, active, rows), back[active])
        chosen = active[value]
        left.append(((_cells(values.count, chosen, rows) == held[:, None]) & back[chosen]).T * group.entering[chosen])
        right.append((_cells(values.count, chosen, columns) == held[:, None]) & ~_cells(values.made, chosen, columns))

    def _bytes(self, rows: slice | Ints, columns: slice | Ints, pairs: Pairs, least: float, largest: float) -> Floats:
        """Bytes of some pairs, ``(n,)``; only right about ``least`` and ``largest`` and between them."""
        last = pairs.last
        size: Floats = self.kept[columns][last] - pairs.by_first(self.kept[rows])
        if len(self.units.shared):
            shared, each = self.shared, self.units.shared.astype(np.float64)
            opened = shared.open[:, rows]
            value, held = _counts(shared.count[:, rows], opened)
            left = ((_cells(shared.count, value, rows) == held[:, None]) & opened[value]).T * each[value]
            right = (_cells(shared.count, value, columns) == held[:, None]).astype(np.float64)
            size += pairs.by_first(each @ opened) - pairs.of(left @ right)
        if self.by_live is None:
            return size
        before, after = self.before[columns][last], pairs.by_first(self.after[rows])
        live = np.minimum(before, after)
        exact = (before > pairs.by_first(self.before[rows])) | (after > self.after[columns][last])
        open_ends = np.flatnonzero(~exact & (size + live > least) & (size <= largest))
        own_rows = pairs.by_first(self._numbers(rows))[open_ends]
        own_columns = self._numbers(columns)[last[open_ends]]
        for start in range(0, len(open_ends), CHUNK):
            part = slice(start, start + CHUNK)
            own = self.by_live[own_columns[part]] & ~self.by_live[own_rows[part]]
            live[open_ends[part]] = self.live[own.argmax(axis=1)]
        return size + live


def _charges(
    classes: tuple[DeviceClass, ...], opened: Bools, back: Bools, forced: Forced | None
) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
    """For each class, what all values that are open at an ideal cost a device that ends there, or starts there."""
    known: dict[tuple[bytes, ...], tuple[Floats, Floats]] = {}
    found = []
    for group in classes:
        key = group.charges
        if key not in known:
            end, start = group.leaving @ opened, group.entering @ opened
            if back.any():
                end = end + group.entering @ back
            if forced is not None and group.to_next is not None:
                end = end + group.to_next @ forced.ahead
            if forced is not None and group.from_last is not None:
                start = start + group.from_last @ forced.behind
            known[key] = end, start
        found.append(known[key])
    return tuple(end for end, _start in found), tuple(start for _end, start in found)


def _largest(rows: Bools | None, live: Floats, count: int) -> Floats:
    """The most bytes alive over the units of each row; the columns fall in these bytes."""
    if rows is None:
        return np.zeros(count)
    return np.where(rows.any(axis=1), live[rows.argmax(axis=1)], 0.0)


def _cells(table: NDArray[Any], rows: Ints, columns: slice | Ints) -> NDArray[Any]:
    """Some rows and columns of a table, without a copy of whole rows."""
    cells: NDArray[Any] = table[:, columns][rows] if isinstance(columns, slice) else table[rows[:, None], columns]
    return cells


def _counts(count: NDArray[np.int16], chosen: Bools) -> tuple[Ints, NDArray[np.int16]]:
    """Each pair (value, count) that occurs where chosen, once."""
    if not len(count):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int16)
    wide = int(count.max(initial=0)) + 1
    codes = np.unique((np.arange(len(count))[:, None] * wide + count)[chosen])
    return codes // wide, (codes % wide).astype(np.int16)
