"""How many bytes a device needs that runs from one ideal to another, for many pairs of ideals."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.crossings import Crossings, cells_of, counts_of
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, Words, pack
from fxpasses.partitioners.solvers.contiguous.ideals.pairs import Pairs
from fxpasses.partitioners.solvers.contiguous.ideals.weighing import weighed
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Sizes"]

Bools = NDArray[np.bool_]
CHUNK = 20_000


@attrs.frozen(eq=False)
class Sizes:
    """The bytes of the units that the ideals of a family hold.

    Args:
        kept: What the units of each ideal keep, ``(f,)``.
        shared: How many units of each ideal name each shared key.
        key_bytes: The bytes of each key, ``(k,)``.
        by_live: Which units each ideal holds, from the most bytes alive to the fewest, as bits, ``(f, w)``; None where
            no unit needs any while it runs.
        live: The bytes that units need while they run, falling, ``(m,)``.
        before: The most of them in each ideal, ``(f,)``.
        after: The most of them outside of each.
    """

    kept: Floats
    shared: Crossings
    key_bytes: Floats
    by_live: Words | None
    live: Floats
    before: Floats
    after: Floats

    @classmethod
    def of(cls, units: Units, family: CutFamily) -> Sizes:
        """Sum up what each ideal holds. Time O((units + shares) × ideals)."""
        everywhere = np.ones((len(units.shared), family.count), dtype=bool)
        falling = np.argsort(-units.live, kind="stable")
        live = units.live[falling].astype(np.float64)
        rows = np.ascontiguousarray(family.inside[falling].T) if units.live.any() else None
        return cls(
            weighed(units.kept.astype(np.float64), family.inside),
            Crossings.of(everywhere, units.shares, family),
            units.shared.astype(np.float64),
            None if rows is None else pack(rows),
            live,
            _largest(rows, live, family.count),
            _largest(None if rows is None else ~rows, live, family.count),
        )

    @property
    def everything(self) -> float:
        """What one device needs that runs all."""
        return float(self.kept[-1] + self.key_bytes.sum() + self.live[:1].sum())

    def kept_by(self, rows: Ints, columns: Ints) -> Floats:
        """What the units between each pair keep, the least that a device needs for it, ``(rows, columns)``."""
        return self.kept[columns][None, :] - self.kept[rows][:, None]

    def keys_of(self, rows: Ints, columns: Ints) -> tuple[Floats, Floats]:
        """The bytes of shared keys open at first ideals, ``(r,)``; of those not named between each pair, ``(r, c)``."""
        shared, each = self.shared, self.key_bytes
        opened = shared.open[:, rows]
        value, held = counts_of(shared.count[:, rows], opened)
        left = ((cells_of(shared.count, value, rows) == held[:, None]) & opened[value]).T * each[value]
        right = (cells_of(shared.count, value, columns) == held[:, None]).astype(np.float64)
        return each @ opened, left @ right

    def of_pairs(self, rows: Ints, columns: Ints, pairs: Pairs, least: float, largest: float) -> Floats:
        """Bytes of some pairs, ``(n,)``; only right about ``least`` and ``largest`` and between them."""
        last = pairs.last
        size: Floats = self.kept[columns][last] - pairs.by_first(self.kept[rows])
        if len(self.key_bytes):
            opened, unnamed = self.keys_of(rows, columns)
            size += pairs.by_first(opened) - pairs.of(unnamed)
        if self.by_live is None:
            return size
        before, after = self.before[columns][last], pairs.by_first(self.after[rows])
        live = np.minimum(before, after)
        exact = (before > pairs.by_first(self.before[rows])) | (after > self.after[columns][last])
        open_ends = np.flatnonzero(~exact & (size + live > least) & (size <= largest))
        own_rows, own_columns = pairs.by_first(rows)[open_ends], columns[last[open_ends]]
        for start in range(0, len(open_ends), CHUNK):
            part = slice(start, start + CHUNK)
            live[open_ends[part]] = self.live[_first(self.by_live[own_columns[part]] & ~self.by_live[own_rows[part]])]
        return size + live


def _first(rows: Words) -> Ints:
    """The first bit of each row."""
    word = (rows != 0).argmax(axis=1)
    bits = rows[np.arange(len(rows)), word]
    lowest = (bits & (~bits + np.uint64(1))).astype(np.float64)  # a power of two, which is exact
    first: Ints = 64 * word + np.log2(lowest).astype(np.int64)
    return first


def _largest(rows: Bools | None, live: Floats, count: int) -> Floats:
    """The most bytes alive over the units of each row; the columns fall in these bytes."""
    if rows is None:
        return np.zeros(count)
    return np.where(rows.any(axis=1), live[rows.argmax(axis=1)], 0.0)
