"""Families of cuts: ideals of a DAG, as rows of bits.

An ideal holds the predecessors of each of its units, so the difference of two nested ideals is what one device of a
pipeline can run. A family is all ideals, or the prefixes of linear orders, or what lies near the cuts of an answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.stops import stops_of
from fxpasses.partitioners.solvers.contiguous.ideals.weighing import weighed
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = [
    "CutFamily",
    "Window",
    "Words",
    "all_ideals",
    "bits_of",
    "by_weight",
    "crossed",
    "ideals_near",
    "masks",
    "pack",
    "prefixes",
    "unpack",
]

Words = NDArray[np.uint64]
NOTHING = 1e-280
"""A weight of all units of which no float says a share."""
ROOM = 4
"""How many times as many ideals as there are have room before those of no interest are cleared away."""


def pack(inside: NDArray[np.bool_]) -> Words:
    """Rows of booleans as rows of 64-bit words, ``(f, m)`` to ``(f, w)``."""
    packed = np.packbits(inside, axis=1, bitorder="little")
    padded = np.zeros((len(packed), -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)


def unpack(words: Words, size: int) -> NDArray[np.bool_]:
    """The inverse of :func:`pack`."""
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=size).astype(bool)


def by_weight(words: Words, weight: Floats) -> Ints:
    """The order of ideals by the weight of their units, then by size."""
    inside = unpack(words, len(weight))
    total = float(weight.sum())
    exact = np.ceil(weight * (2**40 / total if total > NOTHING else 0.0))  # whole numbers: their sums do not round
    order: Ints = np.lexsort((inside.sum(axis=1), weighed(exact, inside.T)))
    return order


@attrs.frozen(eq=False)
class CutFamily:
    """Ideals sorted by their position, so that none stands before one that it holds.

    Args:
        inside: The units of each ideal, ``(m, f)``.
        words: The same as bits, ``(f, w)``.
        position: The weight of each ideal, ``(f,)``.
        is_nested: Whether each holds the one before it, as the prefixes of one order do.
    """

    inside: NDArray[np.bool_]
    words: Words
    position: Floats
    is_nested: bool

    @classmethod
    def of(cls, words: Words, weight: Floats) -> CutFamily:
        """Sort ideals without duplicates by the weight of their units, then by size."""
        words = np.ascontiguousarray(words[by_weight(words, weight)])
        is_nested = bool(((words[1:] & words[:-1]) == words[:-1]).all())
        inside = np.ascontiguousarray(unpack(words, len(weight)).T)
        return cls(inside, words, weighed(weight, inside), is_nested)

    @property
    def count(self) -> int:
        """The number of ideals."""
        return len(self.words)

    def kept(self, chosen: NDArray[np.bool_]) -> CutFamily:
        """The chosen ideals."""
        words = np.ascontiguousarray(self.words[chosen])
        return CutFamily(np.ascontiguousarray(self.inside[:, chosen]), words, self.position[chosen], self.is_nested)


@attrs.frozen(eq=False)
class Window:
    """Only ideals whose weight lies in one of some intervals are of interest.

    Args:
        weight: The weight of each unit, ``(m,)``.
        low: Where each interval begins; the intervals are sorted and do not touch.
        high: Where each ends.
    """

    weight: Floats
    low: Floats
    high: Floats

    def meets(self, least: Floats, most: Floats) -> NDArray[np.bool_]:
        """Whether some interval meets ``[least, most]``."""
        place = np.minimum(np.searchsorted(self.high, least), len(self.high) - 1)
        return (self.low[place] <= most) & (least <= self.high[place])


def all_ideals(units: Units, limit: int, window: Window | None = None, looks: float = math.inf) -> Words | None:
    """Every ideal (whose weight lies in the window), or None if there are too many.

    Units are added in topological order to all ideals at once. Time O(ideals × units).

    Args:
        units: The units.
        limit: How many ideals there may be.
        window: Which are of interest.
        looks: How often one may be looked at, for each unit that is added.
    """
    bits = np.zeros((-(-units.size // 64) or 1, 1024), dtype=np.uint64)
    columns, filled = np.zeros(1, dtype=np.int64), 1  # others are of no interest any more
    least, most = np.zeros(1), np.full(1, np.inf)
    above = None if window is None else window.weight.sum() - _weights_above(units, window.weight)
    for unit, predecessors in enumerate(units.predecessors):
        word = unit // 64
        if filled + len(columns) > bits.shape[1]:
            wider = np.zeros((len(bits), ROOM * len(columns)), dtype=np.uint64)
            wider[: word + 1, : len(columns)] = bits[: word + 1, columns]
            bits, columns, filled = wider, np.arange(len(columns)), len(columns)
        ready = np.ones(len(columns), dtype=bool)
        for place, mask in masks(predecessors).items():
            ready &= bits[place, columns] & mask == mask
        grown = columns[ready]
        if window is not None and above is not None:
            heavier, open_end = least[ready] + window.weight[unit], most[ready]
            most = np.minimum(most, above[unit])
            stays, larger = window.meets(least, most), window.meets(heavier, open_end)
            columns, grown = columns[stays], grown[larger]
            least = np.concatenate([least[stays], heavier[larger]])
            most = np.concatenate([most[stays], open_end[larger]])
        end = filled + len(grown)
        bits[: word + 1, filled:end] = bits[: word + 1, grown]
        bits[word, filled:end] |= np.uint64(1 << unit % 64)
        columns, filled = np.concatenate([columns, np.arange(filled, end)]), end
        looks -= len(columns)
        if len(columns) > limit or looks < 0:
            return None
    if window is not None:
        columns = columns[window.meets(least, least)]
    return np.ascontiguousarray(bits[:, columns].T)


def masks(units: Sequence[int]) -> dict[int, np.uint64]:
    """The words of a set of units that are not empty, with their bits."""
    found: dict[int, int] = {}
    for unit in units:
        found[unit // 64] = found.get(unit // 64, 0) | 1 << unit % 64
    return {word: np.uint64(mask) for word, mask in found.items()}


def _weights_above(units: Units, weight: Floats) -> Floats:
    """For each unit the weight of all units that need it, itself included."""
    above = [1 << unit for unit in range(units.size)]
    for unit in range(units.size - 1, -1, -1):
        for before in units.predecessors[unit]:
            above[before] |= above[unit]
    size = -(-units.size // 64) * 8
    rows = np.frombuffer(b"".join(mask.to_bytes(size, "little") for mask in above), dtype=np.uint64)
    total: Floats = unpack(rows.reshape(units.size, -1), units.size) @ weight
    return total


def ideals_near(units: Units, cuts: Iterable[Sequence[int]], limit: int) -> Words:
    """The ideals that few units tell from one of ``cuts``, nearest first, up to ``limit`` for each cut.

    Each is reached by adding a unit that is ready, or by removing one that no other needs.
    """
    neighbours = _Neighbours(
        [bits_of(own) for own in units.predecessors],
        [bits_of(own) for own in units.successors],
        [(*before, *after) for before, after in zip(units.predecessors, units.successors, strict=True)],
        _pairs(units.predecessors),
    )
    found = dict.fromkeys([0, (1 << units.size) - 1])
    for cut in cuts:
        found.update(neighbours.near(cut, limit))
    size = -(-units.size // 64) * 8 or 8
    rows = np.frombuffer(b"".join(ideal.to_bytes(size, "little") for ideal in found), dtype=np.uint64)
    return rows.reshape(len(found), -1)


def _pairs(needs: Sequence[Sequence[int]]) -> Ints:
    """Each unit that another one needs, and that one, ``(2, n)``."""
    pairs = [(first, unit) for unit, own in enumerate(needs) for first in own]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2).T


def bits_of(units: Iterable[int]) -> int:
    """A set of units as the bits of a number.

    >>> bits_of([0, 3])
    9
    """
    return sum(1 << unit for unit in units)


@attrs.frozen
class _Neighbours:
    """What each unit needs, which units need it, both as bits, and all of them in order; all pairs of the two."""

    needs: list[int]
    users: list[int]
    beside: list[tuple[int, ...]]
    pairs: Ints

    def near(self, cut: Sequence[int], limit: int) -> dict[int, None]:
        """The ideals near one, nearest first."""
        ideal = bits_of(cut)
        found = {ideal: None}
        waiting: list[tuple[int, list[int], tuple[int, ...]]] = [(ideal, self._movable(cut), ())]
        for here, movable, changed in waiting:  # most are never gone on from, so what moves there is asked only now
            held = {unit for unit in changed if not self._moves(unit, here)}
            movable = [unit for unit in dict.fromkeys([*movable, *changed]) if unit not in held]
            for unit in movable:
                there = here ^ 1 << unit
                if there not in found:
                    found[there] = None
                    waiting.append((there, movable, self.beside[unit]))
                    if len(found) >= limit:
                        return found
        return found

    def _movable(self, cut: Sequence[int]) -> list[int]:
        """The units that are ready, then those that can be removed, all looked at together."""
        inside = np.zeros(len(self.needs), dtype=bool)
        inside[list(cut)] = True
        first, second = self.pairs
        is_held = inside.copy()
        is_held[second[~inside[first]]] = True
        is_used = ~inside
        is_used[first[inside[second]]] = True
        return [*np.flatnonzero(~is_held).tolist(), *np.flatnonzero(~is_used).tolist()]

    def _moves(self, unit: int, ideal: int) -> bool:
        return not (self.users[unit] & ideal if ideal >> unit & 1 else self.needs[unit] & ~ideal)


def prefixes(orders: Iterable[Sequence[int]]) -> Words:
    """All prefixes of each order, each once."""
    rows = [_prefixes(order, np.arange(len(order) + 1)) for order in orders]
    return np.unique(np.concatenate(rows), axis=0)


def crossed(orders: Sequence[Sequence[int]], weight: Floats, coarse: int, fine: int) -> Words:
    """What prefixes of two orders make together: a prefix of one, and what a longer one and one of the other share.

    Unions and intersections of ideals are ideals. On a grid of cells they are staircases of two steps, which no order
    between rows and columns has. Each order is cut in ``coarse`` parts beside others that are cut in ``fine`` ones.
    """
    rows = [np.asarray(order, dtype=np.int64) for order in orders]
    few, many = ([_prefixes(row, stops_of(row, weight, parts, 1)) for row in rows] for parts in (coarse, fine))
    found = []
    for one, other in itertools.permutations(range(len(rows)), 2):
        shared = few[one][:, None] & many[other]
        found += [(shared[:, place:] | cut).reshape(-1, len(cut)) for place, cut in enumerate(many[other])]
    return np.unique(np.concatenate(found), axis=0)


def _prefixes(order: Sequence[int] | Ints, stops: Ints) -> Words:
    rank = np.empty(len(order), dtype=np.int64)
    rank[np.asarray(order, dtype=np.int64)] = np.arange(len(order))
    return pack(rank < stops[:, None])
