"""Move all cuts of a coarse answer at once: what one device takes more, those after it take less.

Cuts on a coarse grid leave room on each device, and miss the places where little is sent. What is gained adds up from
device to device, until the last cuts belong far from where they are, which no search near them finds. Where seconds and
bytes simply add up along the order, and a cut costs what is open there, the best cuts are found at once: under a
threshold one device after the other is asked where it can stop, and the threshold is found by bisection. What does not
add up (values that pass a device by, shared and live bytes) is taken from the coarse answer.
"""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.ideals.stops import open_along
from fxpasses.partitioners.solvers.contiguous.searching import Answer, Search
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints, evaluate

__all__ = ["HALVINGS", "largest", "spread"]

HALVINGS = 8
"""How often the thresholds between which the best one lies are halved."""


def spread(
    search: Search, answer: Answer, order: Ints, cuts: Ints, bound: float, likely: float = 0.0
) -> tuple[Ints, float]:
    """After how many units of the order devices would stop, if all but units and cuts cost what it does in the answer.

    Args:
        search: The problem with all units.
        answer: An answer along the order.
        order: The units, ``(m,)``.
        cuts: After how many units of the order each device of the answer stops, ``(d,)``.
        bound: Thresholds are looked at between it and the value of the answer.
        likely: A threshold that is likely to be too low: it is looked at first.

    Returns:
        Up to ``d`` places, sorted, and the largest threshold that is too low. Time O(m × classes + d × places where a
        device can stop).
    """
    runs = _Runs.of(search, answer, order, cuts)
    low, high, found = bound, answer.goal(search), cuts
    if math.isinf(high):
        ends = runs.under(high)
        return cuts if ends is None else ends, bound
    threshold = likely if low < likely < high else (low + high) / 2
    for _halving in range(HALVINGS):
        ends = runs.under(threshold)
        low, high, found = (threshold, high, found) if ends is None else (low, threshold, ends)
        threshold = (low + high) / 2
    return found, low


@attrs.frozen
class _Run:
    """What one device can run, by sums over the units before each place of the order.

    Args:
        load: What adds up and should be small, ``(m + 1,)``.
        begin: The same without what it costs to begin at each place: what loads are counted from.
        end: The same with what it costs to stop there.
        kept: Bytes, ``(m + 1,)``.
        banned: From which place on at least a run up to each place begins, as the device cannot run what is before.
        beside: The load and the bytes that do not follow from the ends.
        memory: Its bytes.
    """

    load: Floats
    begin: Floats
    end: Floats
    kept: Floats
    banned: Ints
    beside: tuple[float, float]
    memory: float

    def ends(self, begins: Ints, least: int, most: float) -> Ints:
        """Where it can stop, from one of some places, with so much load at most, but not before a place."""
        room, left = most - self.beside[0], self.begin[begins]
        places = np.arange(least, np.searchsorted(self.load, left.max() + room, side="right"))
        first, after = self._range(begins, places)
        fine = np.flatnonzero(first < after)
        enough = largest(left, first[fine], after[fine]) + room >= self.end[places[fine]]
        return places[fine[enough]]

    def begin_of(self, begins: Ints, place: int) -> int:
        """Of the places from which it can stop at another one that from which it has the least load."""
        first, after = (int(each[0]) for each in self._range(begins, np.array([place])))
        return int(begins[first + np.argmax(self.begin[begins[first:after]])])

    def earliest(self, place: int, most: float) -> int:
        """Where it begins at the earliest to stop at a place, if its ends cost nothing."""
        return int(np.searchsorted(self.load, self.load[place] - (most - min(self.beside[0], 0.0))))

    def _range(self, begins: Ints, places: Ints) -> tuple[Ints, Ints]:
        """From which to before which of some places the device can begin to stop at others."""
        size = self.kept[places] - (self.memory - self.beside[1])
        first = np.maximum(np.searchsorted(self.kept, size), self.banned[places])
        start = int(begins[0])
        ranks = np.append(0, np.cumsum(_flags(begins)))
        found_first, found_after = (ranks[np.clip(each - start, 0, len(ranks) - 1)] for each in (first, places))
        return found_first, found_after


def _flags(places: Ints) -> NDArray[np.bool_]:
    """Which are some places, from the first of them to the last."""
    first = places.min()
    flags = np.zeros(places.max() - first + 1, dtype=np.bool_)
    flags[places - first] = True
    return flags


def _joined(some: Ints, others: Ints) -> Ints:
    """Places that are in either, sorted. Time O(places between the first and the last)."""
    both: Ints = np.concatenate([some, others])
    return both.min() + np.flatnonzero(_flags(both)) if both.size else both


def largest(values: Floats, first: Ints, after: Ints) -> Floats:
    """The largest of the values from one place to before another one, for some such ranges; none is empty."""
    if not first.any():
        return np.maximum.accumulate(values)[after - 1]
    tables = [values]
    while 2 * (width := 1 << (len(tables) - 1)) <= len(values):
        tables.append(np.maximum(tables[-1][:-width], tables[-1][width:]))
    level = np.frexp((after - first).astype(np.float64))[1] - 1
    found = np.empty(len(first))
    for each, table in enumerate(tables):
        own = np.flatnonzero(level == each)
        found[own] = np.maximum(table[first[own]], table[after[own] - (1 << each)])
    return found


@attrs.frozen
class _Runs:
    """The devices of an answer in execution order, and how many units there are."""

    devices: list[_Run]
    count: int

    @classmethod
    def of(cls, search: Search, answer: Answer, order: Ints, cuts: Ints) -> _Runs:
        figures, units = evaluate(search.tables, answer.device_of), search.units
        kept = np.append(0.0, np.cumsum(units.kept[order]))
        by_bytes = search.problem.objective == "memory"
        kinds, opened = [], dict[bytes, Floats]()

        def along(costs: Floats) -> Floats:
            """The same for devices that differ in memory only."""
            if (key := costs.tobytes()) not in opened:
                opened[key] = open_along(order, units, np.zeros_like(costs) if by_bytes else costs)
            return opened[key]

        for group in search.classes:
            load = kept if by_bytes else np.append(0.0, np.cumsum(group.weight[order]))
            entering, leaving = along(group.entering), along(group.leaving)
            behind = np.append(0, np.where(group.banned[order], np.arange(1, len(order) + 1), 0))
            kinds.append((load, load - entering, load + leaving, np.maximum.accumulate(behind)))
        kind_of = {device: kind for kind, group in enumerate(search.classes) for device in group.devices}
        devices, first = [], 0
        for device, last in zip(answer.order, cuts.tolist(), strict=True):
            load, begin, end, banned = kinds[kind_of[device]]
            size = float(figures.kept[device] - (kept[last] - kept[first]))
            value = figures.kept[device] if by_bytes else figures.load[device]
            beside = float(value - (end[last] - begin[first]))
            memory = float(search.tables.memory[device])
            devices.append(_Run(load, begin, end, kept, banned, (beside, size), memory))
            first = last
        return cls(devices, len(order))

    def under(self, threshold: float) -> Ints | None:
        """Where devices stop under a threshold, sorted; None where they cannot run everything."""
        least, at = [], self.count
        for device in reversed(self.devices):
            least.append(at)
            at = device.earliest(at, threshold)
        if at > 0:
            return None
        reached = [np.zeros(1, dtype=np.int64)]
        for device, place in zip(self.devices, reversed(least), strict=True):
            before = reached[-1]
            ends = device.ends(before, place, threshold)
            reached.append(_joined(ends, before[np.searchsorted(before, place) :]))
            if not reached[-1].size:
                return None
        return self._back(reached)

    def _back(self, reached: list[Ints]) -> Ints:
        """The places at which devices stop, from the last one back; one that the others do without has nothing."""
        found = [self.count]
        for device, begins in zip(reversed(self.devices), reversed(reached[:-1]), strict=True):
            if found[-1] not in begins:
                found.append(device.begin_of(begins, found[-1]))
        return np.array(found[-2::-1])
