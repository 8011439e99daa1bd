"""What the difference of two ideals weighs on one device, for many pairs of ideals at once: seconds and bytes.

Values are charged where they leave and where they enter
(:mod:`~fxpasses.partitioners.solvers.contiguous.ideals.transfers`), shared keys where they are named
(:mod:`~fxpasses.partitioners.solvers.contiguous.ideals.sizes`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.crossings import cells_of
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, unpack
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.pairs import Pairs
from fxpasses.partitioners.solvers.contiguous.ideals.sizes import Sizes
from fxpasses.partitioners.solvers.contiguous.ideals.transfers import Transfers
from fxpasses.partitioners.solvers.contiguous.ideals.weighing import weighed
from fxpasses.partitioners.solvers.flat_lists import flat_floats
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Spans"]

Bools = NDArray[np.bool_]

SLACK = 1e-9


@attrs.frozen(eq=False)
class Spans:
    """A family of ideals prepared for questions about pairs of them.

    Args:
        family: The ideals.
        classes: The devices.
        credit: For each class what is taken off its bytes, if these are the load; None where seconds are.
        transfers: What values cost.
        bytes: What devices need.
        weight: For each class the seconds of each ideal, ``(classes, f)``.
        banned: For each class how many units of each ideal it cannot run; None: it can run all.
    """

    family: CutFamily
    classes: tuple[DeviceClass, ...]
    credit: tuple[float, ...] | None
    transfers: Transfers
    bytes: Sizes
    weight: Floats
    banned: tuple[Floats | None, ...]

    @classmethod
    def of(
        cls,
        units: Units,
        family: CutFamily,
        classes: tuple[DeviceClass, ...],
        credit: tuple[float, ...] | None = None,
    ) -> Spans:
        """Sum up what each ideal holds. Time O((units × classes + uses) × ideals)."""
        inside, banned = family.inside, [group.banned.astype(np.float64) for group in classes]
        return cls(
            family,
            classes,
            credit,
            Transfers.of(units, family, classes),
            Sizes.of(units, family),
            weighed(np.stack([group.weight for group in classes]), inside),
            tuple(weighed(own, inside) if own.any() else None for own in banned),
        )

    def nested(self, rows: slice | Ints, columns: slice | Ints) -> Bools:
        """Whether the second ideal holds the first and is not the same, for each pair."""
        first, second = self._numbers(rows), self._numbers(columns)
        larger: Bools = first[:, None] < second[None, :]
        if self.family.is_nested:
            return larger
        held = self.family.inside[:, rows]
        units = np.flatnonzero(held.any(axis=1) & ~self._held_by_all(columns))
        missing = ~cells_of(self.family.inside, units, columns)
        larger &= held[units].astype(np.float32).T @ missing.astype(np.float32) == 0
        return larger

    def loads(
        self, rows: slice | Ints, columns: slice | Ints, below: float, asked: Sequence[int] | Ints | None = None
    ) -> Floats:
        """The load of one device of some classes for each pair, ``inf`` where it is not under ``below`` or not legal.

        ``(asked, rows, columns)``, for all classes if None are named. Compiled code says the same to the last bit,
        where it is loaded.
        """
        asked = np.arange(len(self.classes)) if asked is None else np.asarray(asked)
        if self.credit is not None:
            by_bytes = self._by_bytes_compiled if "numba" in sys.modules else self._by_bytes
            return by_bytes(asked, rows, columns, np.array(self.credit), below)
        first, kind_of = self._kinds
        needed, place = np.unique(kind_of[asked], return_inverse=True)
        kinds = first[needed]
        each = (self._compiled if "numba" in sys.modules else self._in_numpy)(kinds, rows, columns, below)
        passing = self.transfers.passing(rows, columns)
        for load, kind in zip(each, kinds.tolist(), strict=True):
            if passing is not None and (passed := self.classes[kind].passed) is not None:
                load[passing != passed] = np.inf
            if (banned := self.banned[kind]) is not None:
                load[banned[columns][None, :] != banned[rows][:, None]] = np.inf
        found: Floats = each if np.array_equal(place, np.arange(len(kinds))) else each[place]
        if self.is_tight:
            pairs = Pairs.where(np.logical_or.reduce(np.isfinite(each)))
            size = self.sizes(rows, columns, pairs)
            for load, memory in zip(found, self._memory[asked].tolist(), strict=True):
                load.ravel()[pairs.cells[size > memory]] = np.inf
        return found

    def _in_numpy(self, kinds: Ints, rows: slice | Ints, columns: slice | Ints, below: float) -> Floats:
        """The loads of nested pairs under a threshold, for some classes."""
        nested = self.nested(rows, columns)
        found = np.empty((len(kinds), *nested.shape))
        saved, way = self._saved(kinds, rows, columns)
        for place, kind in enumerate(kinds.tolist()):
            start, end = self.transfers.starts[kind][rows], self.transfers.ends[kind][columns]
            load = start[:, None] + end[None, :] - saved[way[place]]
            load += self.weight[kind][columns][None, :] - self.weight[kind][rows][:, None]
            np.maximum(load, 0.0, out=load)
            found[place] = np.where((load < below) & nested, load, np.inf)
        return found

    def _compiled(self, kinds: Ints, rows: slice | Ints, columns: slice | Ints, below: float) -> Floats:
        """The same."""
        from fxpasses.partitioners.solvers.contiguous.ideals.span_runs import charged  # numba is heavy

        numbers, words = (self._numbers(rows), self._numbers(columns)), self.family.words
        bits = words[:, :0] if self.family.is_nested else words
        saved, way = self._saved(kinds, rows, columns)
        found = np.empty((len(kinds), len(numbers[0]), len(numbers[1])))
        ends = flat_floats(self.transfers.starts[kinds][:, rows]), flat_floats(self.transfers.ends[kinds][:, columns])
        weight = flat_floats(self.weight[kinds][:, rows]), flat_floats(self.weight[kinds][:, columns])
        apart = np.empty(len(numbers[1]))
        charged(found, np.stack(saved), way, ends, weight, numbers, (bits[rows], bits[columns]), below, apart)
        return found

    def _saved(self, kinds: Ints, rows: slice | Ints, columns: slice | Ints) -> tuple[list[Floats], Ints]:
        """What some classes are not charged of open values, for each way to charge; for each class, which it is."""
        ways, way = self._ways
        needed, place = np.unique(way[kinds], return_inverse=True)
        return [self.transfers.saved(ways[number], rows, columns) for number in needed.tolist()], place

    def may_weigh(self, ideals: Ints, last: int, below: float) -> Bools:
        """From which ideals to a later one the load may be under ``below``, as far as seconds alone say."""
        if self.credit is not None:
            return np.ones(len(ideals), dtype=bool)
        weights = self.weight[self._kinds[0]]
        slack = SLACK * float(weights[:, -1].max(initial=0.0))
        fine = [weight[last] - weight[ideals] < below + slack for weight in weights]
        light: Bools = np.logical_or.reduce(fine)
        return light

    def under(self, rows: Ints, columns: Ints, below: float) -> list[Bools]:
        """For each class, which pairs are legal and stay under a threshold (up to rounding): less work than loads."""
        if self.credit is not None:
            return [np.isfinite(load) for load in self.loads(rows, columns, below)]
        nested, found = self.nested(rows, columns), []
        passing = self.transfers.passing(rows, columns)
        ways, way = self._ways
        crossing = [self.transfers.crossing(kind, rows, columns) for kind in ways]
        for kind, group in enumerate(self.classes):
            fine = crossing[way[kind]] + self.weight[kind][columns][None, :] < below + self.weight[kind][rows][:, None]
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
    def _ways(self) -> tuple[list[int], Ints]:
        """Of classes that are charged alike for values the first; for each class, which of these it is charged like."""
        ways: dict[tuple[bytes, ...], int] = {}
        way = [ways.setdefault(group.charges, len(ways)) for group in self.classes]
        return [way.index(number) for number in range(len(ways))], np.array(way)

    @cached_property
    def _kinds(self) -> tuple[Ints, Ints]:
        """Of classes that differ in memory only the first; for each class, which of these it is like."""
        kinds: dict[tuple[object, ...], int] = {}
        kind_of = [kinds.setdefault(group.costs, len(kinds)) for group in self.classes]
        return np.array([kind_of.index(number) for number in range(len(kinds))]), np.array(kind_of)

    @cached_property
    def _memory(self) -> Floats:
        """The bytes that a device of each class has."""
        return np.array([group.memory for group in self.classes], dtype=np.float64)

    @cached_property
    def is_tight(self) -> bool:
        """Whether bytes matter: some device has not room for everything."""
        return self.credit is not None or self.bytes.everything > float(self._memory.min())

    def _by_bytes(self, asked: Ints, rows: slice | Ints, columns: slice | Ints, credit: Floats, below: float) -> Floats:
        nested, ends = self.nested(rows, columns), (self._numbers(rows), self._numbers(columns))
        most = self._enough(credit, below)
        few = nested & (self.bytes.kept_by(*ends) <= most)
        pairs, size = Pairs.where(few), np.zeros(nested.shape)
        size.ravel()[pairs.cells] = self.bytes.of_pairs(*ends, pairs, -1.0, most)
        found = []
        for kind in asked.tolist():
            load = np.maximum(size - credit[kind], 0.0)
            legal = few & (load < below) & (size <= self._memory[kind])
            if (banned := self.banned[kind]) is not None:
                legal &= banned[columns][None, :] == banned[rows][:, None]
            found.append(np.where(legal, load, np.inf))
        return np.stack(found)

    def _by_bytes_compiled(
        self, asked: Ints, rows: slice | Ints, columns: slice | Ints, credit: Floats, below: float
    ) -> Floats:
        """The same."""
        from fxpasses.partitioners.solvers.contiguous.ideals.byte_runs import needed  # numba is heavy

        first, second = ends = self._numbers(rows), self._numbers(columns)
        sizes, words = self.bytes, self.family.words
        bits = words[:, :0] if self.family.is_nested else words
        by_live = words[:, :0] if sizes.by_live is None else sizes.by_live
        keys = sizes.keys_of(*ends) if len(sizes.key_bytes) else (np.zeros(len(first)), np.zeros((len(first), 0)))
        found = np.empty((len(asked), len(first), len(second)))
        needed(
            found,
            (sizes.kept[first], sizes.kept[second]),
            keys,
            ((sizes.before[first], sizes.before[second]), (sizes.after[first], sizes.after[second])),
            sizes.live,
            (by_live[first], by_live[second]),
            ends,
            (bits[first], bits[second]),
            (credit[asked], self._memory[asked]),
            below,
            self._enough(credit, below),
        )
        for load, kind in zip(found, asked.tolist(), strict=True):
            if (banned := self.banned[kind]) is not None:
                load[banned[second][None, :] != banned[first][:, None]] = np.inf
        return found

    def _enough(self, credit: Floats, below: float) -> float:
        """More bytes than that are under a threshold on no device."""
        return min(below + float(credit.max()), float(self._memory.max()))

    def _numbers(self, chosen: slice | Ints) -> Ints:
        """The numbers of some ideals."""
        return np.arange(*chosen.indices(self.family.count)) if isinstance(chosen, slice) else chosen

    @staticmethod
    def _meant(group: DeviceClass, nested: Bools, passing: Bools | None) -> Bools:
        """The nested pairs that a class is about."""
        if passing is None or group.passed is None:
            return nested
        return nested & (passing if group.passed else ~passing)

    def sizes(self, rows: slice | Ints, columns: slice | Ints, pairs: Pairs) -> Floats:
        """The bytes of some nested pairs, ``(n,)``; small ones may be too large, but fit everywhere."""
        ends = self._numbers(rows), self._numbers(columns)
        return self.bytes.of_pairs(*ends, pairs, float(self._memory.min()), float(self._memory.max()))

    def _held_by_all(self, columns: slice | Ints) -> Bools:
        """The units that all of some ideals hold."""
        common = np.bitwise_and.reduce(self.family.words[columns], axis=0)
        held: Bools = unpack(common[None], len(self.family.inside))[0]
        return held
