"""Families of cuts: ideals of a DAG, either all of them or those that prefixes of linear orders give.

An ideal holds the predecessors of each of its units, so the difference of two nested ideals is what one device of a
pipeline can run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.reducing import Units

__all__ = ["CutFamily", "all_ideals", "linear_orders", "prefixes"]

MAX_CELLS = 40_000_000
MAX_PREFIXES = 1000


@attrs.frozen(eq=False)
class CutFamily:
    """Ideals as the columns of ``inside``, ``(m, f)``; the same as words for subset tests, ``(f, w)``.

    ``is_nested`` says that each holds the one before it, as the prefixes of one order do.
    """

    inside: NDArray[np.bool_]
    words: NDArray[np.uint64]
    is_nested: bool

    @classmethod
    def of(cls, inside: NDArray[np.bool_], weight: NDArray[np.float64]) -> CutFamily:
        """Drop duplicates and sort by weight, then size; a superset never stands before its subset."""
        packed = np.packbits(inside, axis=0).T
        padded = np.zeros((packed.shape[0], -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
        padded[:, : packed.shape[1]] = packed
        words = padded.view(np.uint64)
        words, first = np.unique(words, axis=0, return_index=True)
        inside = inside[:, first]
        exact = np.ceil(weight * (2**40 / (float(weight.sum()) or 1.0))).astype(
            np.int64
        )  # whole numbers: sums do not round
        order = np.lexsort((first, inside.sum(axis=0), exact @ inside))
        words = np.ascontiguousarray(words[order])
        is_nested = bool(((words[1:] & words[:-1]) == words[:-1]).all())
        return cls(np.ascontiguousarray(inside[:, order]), words, is_nested)

    @property
    def count(self) -> int:
        """The number of ideals."""
        return len(self.words)


def all_ideals(units: Units, limit: int) -> NDArray[np.bool_] | None:
    """Every ideal as a column, or None if there are more than ``limit``. Time O(ideals × width)."""
    needs = [sum(1 << before for before in predecessors) for predecessors in units.predecessors]
    successors = _successors(units)
    start = sum(1 << unit for unit, mask in enumerate(needs) if not mask)
    found = {0: start}  # each ideal with the units that may come next
    waiting = [0]
    for ideal in waiting:
        ready = found[ideal]
        while ready:
            bit = ready & -ready
            ready ^= bit
            larger = ideal | bit
            if larger not in found:
                following = found[ideal] ^ bit
                for unit in successors[bit.bit_length() - 1]:
                    if not needs[unit] & ~larger:
                        following |= 1 << unit
                found[larger] = following
                waiting.append(larger)
        if len(found) > limit:
            return None
    size = -(-units.size // 8)
    rows = np.frombuffer(b"".join(ideal.to_bytes(size, "little") for ideal in found), dtype=np.uint8)
    bits = np.unpackbits(rows.reshape(-1, size), axis=1, bitorder="little", count=units.size)
    return np.ascontiguousarray(bits.T).astype(bool)


def linear_orders(units: Units, count: int, seed: int) -> list[list[int]]:
    """Topological orders that cut differently: as given, depth first, breadth first, then random ones."""
    level = [0] * units.size
    for unit, predecessors in enumerate(units.predecessors):
        level[unit] = 1 + max((level[before] for before in predecessors), default=-1)
    draw = random.Random(seed)
    rules: list[Callable[[int, int], tuple[float, ...]]] = [
        lambda unit, _step: (unit,),
        lambda unit, step: (-step, unit),  # what became ready last: depth first
        lambda unit, _step: (level[unit], unit),
        lambda unit, step: (-step, -unit),
    ]
    orders = [_ordered(units, rule) for rule in rules[:count]]
    while len(orders) < count:
        shuffled = [draw.random() for _ in range(units.size)]
        orders.append(_ordered(units, lambda unit, step, drawn=shuffled: (-step, drawn[unit])))  # type: ignore[misc]  # mypy cannot infer defaults
    return orders


def _ordered(units: Units, rule: Callable[[int, int], tuple[float, ...]]) -> list[int]:
    """Kahn's algorithm that takes the ready unit of the smallest rule; ``step`` says when it became ready."""
    missing = [len(predecessors) for predecessors in units.predecessors]
    successors = _successors(units)
    ready = [(rule(unit, 0), unit) for unit, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        unit = heapq.heappop(ready)[1]
        order.append(unit)
        for user in successors[unit]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (rule(user, len(order)), user))
    return order


def prefix_limit(size: int) -> int:
    """How many prefixes of one order of so many units are looked at."""
    return max(2, min(MAX_PREFIXES, MAX_CELLS // max(1, size)))


def prefixes(orders: Iterable[Sequence[int]], weight: NDArray[np.float64], devices: int = 1) -> NDArray[np.bool_]:
    """The prefixes of each order as columns; of long orders some hundreds, among them those of equal shares."""
    columns = []
    for order in orders:
        stops = np.arange(len(order) + 1)
        if len(order) > prefix_limit(len(order)):
            progress = _progress(order, weight)
            goals = np.linspace(0, 1, max(1, prefix_limit(len(order)) // devices) * devices + 1)
            stops = np.concatenate([[0], np.searchsorted(progress, goals) + 1, [len(order)]])
        columns.append(_columns(order, stops))
    return np.concatenate(columns, axis=1)


def prefixes_near(
    order: Sequence[int], stops: NDArray[np.int64], weight: NDArray[np.float64], share: float, reach: int
) -> NDArray[np.bool_]:
    """The prefixes that end at some stops, and ``reach`` on either side of each, a ``share`` of the weight apart."""
    progress = _progress(order, weight)
    goals = progress[stops - 1][:, None] + share * np.arange(-reach, reach + 1)[None, :]
    near = np.searchsorted(progress, goals.ravel()) + 1
    return _columns(order, np.concatenate([[0], stops, near, [len(order)]]))


def _progress(order: Sequence[int], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    least = max(float(weight.mean()), 1e-300) / 100  # what weighs nothing takes some room, for it may keep bytes
    progress: NDArray[np.float64] = np.cumsum((weight + least)[np.asarray(order)])
    progress /= progress[-1]
    return progress


def _columns(order: Sequence[int], stops: NDArray[np.int64]) -> NDArray[np.bool_]:
    rank = np.empty(len(order), dtype=np.int64)
    rank[np.asarray(order, dtype=np.int64)] = np.arange(len(order))
    inside: NDArray[np.bool_] = rank[:, None] < np.unique(stops.clip(0, len(order)))[None, :]
    return inside


def _successors(units: Units) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(units.size)]
    for unit, predecessors in enumerate(units.predecessors):
        for before in predecessors:
            found[before].append(unit)
    return found
