"""What the difference of two ideals weighs on one device, for many pairs of ideals at once: seconds and bytes.

Values are charged where they leave and where they enter
(:mod:`~fxpasses.partitioners.solvers.contiguous.ideals.transfers`), shared keys where they are named
(:mod:`~fxpasses.partitioners.solvers.contiguous.ideals.sizes`).
"""

from __future__ import annotations

import sys
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

    def loads(self, rows: slice | Ints, columns: slice | Ints, below: float) -> Floats:
        """The load of one device of each class for each pair, ``inf`` where it is not under ``below`` or not legal.

        ``(classes, rows, columns)``. Compiled code says the same to the last bit, where it is loaded.
        """
        if self.credit is not None:
            by_bytes = self._by_bytes_compiled if "numba" in sys.modules else self._by_bytes
            return by_bytes(rows, columns, self.credit, below)
        found = (self._compiled if "numba" in sys.modules else self._in_numpy)(rows, columns, below)
        passing = self.transfers.passing(rows, columns)
        for kind, group in enumerate(self.classes):
            if passing is not None and group.passed is not None:
                found[kind][passing != group.passed] = np.inf
            if (banned := self.banned[kind]) is not None:
                found[kind][banned[columns][None, :] != banned[rows][:, None]] = np.inf
        if self.is_tight:
            pairs = Pairs.where(np.logical_or.reduce([np.isfinite(load) for load in found]))
            size = self.sizes(rows, columns, pairs)
            for load, group in zip(found, self.classes, strict=True):
                load.ravel()[pairs.cells[size > group.memory]] = np.inf
        return found

    def _in_numpy(self, rows: slice | Ints, columns: slice | Ints, below: float) -> Floats:
        """The loads of nested pairs under a threshold."""
        nested = self.nested(rows, columns)
        found = np.empty((len(self.classes), *nested.shape))
        ways, way = self._ways
        saved = [self.transfers.saved(kind, rows, columns) for kind in ways]
        for kind in range(len(self.classes)):
            start, end = self.transfers.starts[kind][rows], self.transfers.ends[kind][columns]
            load = start[:, None] + end[None, :] - saved[way[kind]]
            load += self.weight[kind][columns][None, :] - self.weight[kind][rows][:, None]
            np.maximum(load, 0.0, out=load)
            found[kind] = np.where((load < below) & nested, load, np.inf)
        return found

    def _compiled(self, rows: slice | Ints, columns: slice | Ints, below: float) -> Floats:
        """The same."""
        from fxpasses.partitioners.solvers.contiguous.ideals.span_runs import charged  # numba is heavy

        numbers, words = (self._numbers(rows), self._numbers(columns)), self.family.words
        bits = words[:, :0] if self.family.is_nested else words
        ways, way = self._ways
        saved = np.stack([self.transfers.saved(kind, rows, columns) for kind in ways])
        found = np.empty((len(self.classes), len(numbers[0]), len(numbers[1])))
        ends = flat_floats(self.transfers.starts[:, rows]), flat_floats(self.transfers.ends[:, columns])
        weight = flat_floats(self.weight[:, rows]), flat_floats(self.weight[:, columns])
        charged(found, saved, way, ends, weight, numbers, (bits[rows], bits[columns]), below, np.empty(len(numbers[1])))
        return found

    def may_weigh(self, ideals: Ints, last: int, below: float) -> Bools:
        """From which ideals to a later one the load may be under ``below``, as far as seconds alone say."""
        if self.credit is not None:
            return np.ones(len(ideals), dtype=bool)
        slack = SLACK * max((float(weight[-1]) for weight in self.weight), default=0.0)
        fine = [weight[last] - weight[ideals] < below + slack for weight in self.weight]
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
    def is_tight(self) -> bool:
        """Whether bytes matter: some device has not room for everything."""
        return self.credit is not None or self.bytes.everything > min(group.memory for group in self.classes)

    def _by_bytes(self, rows: slice | Ints, columns: slice | Ints, credit: tuple[float, ...], below: float) -> Floats:
        nested, ends = self.nested(rows, columns), (self._numbers(rows), self._numbers(columns))
        most = self._enough(credit, below)
        few = nested & (self.bytes.kept_by(*ends) <= most)
        pairs, size = Pairs.where(few), np.zeros(nested.shape)
        size.ravel()[pairs.cells] = self.bytes.of_pairs(*ends, pairs, -1.0, most)
        found = []
        for kind, group in enumerate(self.classes):
            load = np.maximum(size - credit[kind], 0.0)
            legal = few & (load < below) & (size <= group.memory)
            if (banned := self.banned[kind]) is not None:
                legal &= banned[columns][None, :] == banned[rows][:, None]
            found.append(np.where(legal, load, np.inf))
        return np.stack(found)

    def _by_bytes_compiled(
        self, rows: slice | Ints, columns: slice | Ints, credit: tuple[float, ...], below: float
    ) -> Floats:
        """The same."""
        from fxpasses.partitioners.solvers.contiguous.ideals.byte_runs import needed  # numba is heavy

        first, second = ends = self._numbers(rows), self._numbers(columns)
        sizes, words = self.bytes, self.family.words
        bits = words[:, :0] if self.family.is_nested else words
        by_live = words[:, :0] if sizes.by_live is None else sizes.by_live
        keys = sizes.keys_of(*ends) if len(sizes.key_bytes) else (np.zeros(len(first)), np.zeros((len(first), 0)))
        memory = np.array([group.memory for group in self.classes], dtype=np.float64)
        found = np.empty((len(self.classes), len(first), len(second)))
        needed(
            found,
            (sizes.kept[first], sizes.kept[second]),
            keys,
            ((sizes.before[first], sizes.before[second]), (sizes.after[first], sizes.after[second])),
            sizes.live,
            (by_live[first], by_live[second]),
            ends,
            (bits[first], bits[second]),
            (np.array(credit, dtype=np.float64), memory),
            below,
            self._enough(credit, below),
        )
        for kind, banned in enumerate(self.banned):
            if banned is not None:
                found[kind][banned[second][None, :] != banned[first][:, None]] = np.inf
        return found

    def _enough(self, credit: tuple[float, ...], below: float) -> float:
        """More bytes than that are under a threshold on no device."""
        return min(below + max(credit), max(group.memory for group in self.classes))

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
        memory = [group.memory for group in self.classes]
        ends = self._numbers(rows), self._numbers(columns)
        return self.bytes.of_pairs(*ends, pairs, min(memory), max(memory))

    def _held_by_all(self, columns: slice | Ints) -> Bools:
        """The units that all of some ideals hold."""
        common = np.bitwise_and.reduce(self.family.words[columns], axis=0)
        held: Bools = unpack(common[None], len(self.family.inside))[0]
        return held
