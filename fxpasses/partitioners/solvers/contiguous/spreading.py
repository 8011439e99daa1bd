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
"""How often the thresholds between which the best one lies are halved, at most."""
NEAR = 1e-6
"""The part of a threshold that is not worth halving."""


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
    low, high, found = bound, answer.goal(search), cuts
    runs = _Runs.of(search, answer, order, cuts).up_to(high)
    if math.isinf(high):
        ends = runs.under(high)
        return cuts if ends is None else ends, bound
    threshold = likely if low < likely < high else (low + high) / 2
    for _halving in range(HALVINGS):
        if high - low <= NEAR * high:
            break
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
        window: From which place to before which it can stop, under any threshold that is asked for.
        fits: From which place on at least a run up to each of these begins, by bytes and by what it can run.
    """

    load: Floats
    begin: Floats
    end: Floats
    kept: Floats
    banned: Ints
    beside: tuple[float, float]
    memory: float
    window: tuple[int, int] = (0, 0)
    fits: Ints = attrs.field(factory=lambda: np.zeros(0, dtype=np.int64))

    def within(self, first: int, after: int) -> _Run:
        """The same, ready to be asked where runs begin that stop in a window."""
        size = self.kept[first:after] - (self.memory - self.beside[1])
        fits = np.maximum(np.searchsorted(self.kept, size), self.banned[first:after])
        return attrs.evolve(self, window=(first, after), fits=fits)

    def ends(self, begins: Ints, least: int, most: float) -> Ints:
        """Where it can stop, from one of some places, with so much load at most, but not before a place."""
        room, left, start = most - self.beside[0], self.begin[begins], int(begins[0])
        stop = max(least, int(np.searchsorted(self.load, left.max() + room, side="right")))
        from_there = np.full(int(begins[-1]) + 1 - start, -np.inf)
        from_there[begins - start] = left
        first = np.maximum(self.fits[least - self.window[0] : stop - self.window[0]] - start, 0)
        after = np.minimum(np.arange(least - start, stop - start), len(from_there))
        fine = np.flatnonzero(first < after)
        enough = largest(from_there, first[fine], after[fine]) + room >= self.end[least:stop][fine]
        return least + fine[enough]

    def begin_of(self, begins: Ints, place: int) -> int:
        """Of the places from which it can stop at another one that from which it has the least load."""
        first, after = np.searchsorted(begins, [self.fits[place - self.window[0]], place])
        return int(begins[first + np.argmax(self.begin[begins[first:after]])])

    def earliest(self, place: int, most: float) -> int:
        """Where it begins at the earliest to stop at a place, if its ends cost nothing."""
        return int(np.searchsorted(self.load, self.load[place] - (most - min(self.beside[0], 0.0))))

    def latest(self, place: int, most: float) -> int:
        """Where it stops at the latest that begins up to a place, if its ends cost nothing."""
        return int(np.searchsorted(self.load, self.load[place] + (most - self.beside[0]), side="right")) - 1


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
    """The largest of the values from one place to before another one, for some such ranges; none is empty.

    Values mostly grow. Time O(values + ranges) where the largest so far is always in the range.
    """
    highest = np.maximum.accumulate(values)
    found: Floats = highest[after - 1]
    if first.any():
        at = np.maximum.accumulate(np.where(values == highest, np.arange(len(values)), 0))
        before = np.flatnonzero(at[after - 1] < first)
        found[before] = _largest(values, first[before], after[before]) if before.size else 0.0
    return found


def _largest(values: Floats, first: Ints, after: Ints) -> Floats:
    """The same in any case, from tables of the largest of 1, 2, 4, ... values: time O(values × log values)."""
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
        kinds: dict[tuple[int, ...], tuple[Floats, Floats, Floats, Ints]] = {}
        kind_of = {}
        for group in search.classes:
            costs = group.weight, group.entering, group.leaving, group.banned
            kind = tuple(map(id, costs))  # what differs in memory only has the same arrays
            if kind not in kinds:
                load = kept if by_bytes else np.append(0.0, np.cumsum(group.weight[order]))
                open_then = {id(each): open_along(order, units, each * (not by_bytes)) for each in costs[1:3]}
                behind = np.append(0, np.where(group.banned[order], np.arange(1, len(order) + 1), 0))
                begin, end = load - open_then[kind[1]], load + open_then[kind[2]]
                kinds[kind] = load, begin, end, np.maximum.accumulate(behind)
            kind_of.update(dict.fromkeys(group.devices, kind))
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

    def up_to(self, most: float) -> _Runs:
        """The same, ready to be asked about thresholds up to this one."""
        after, at = [], 0
        for device in self.devices:
            at = device.latest(at, most)
            after.append(at + 1)
        least = self._least(most)
        ready = [device.within(*window) for device, *window in zip(self.devices, least, after, strict=True)]
        return attrs.evolve(self, devices=ready)

    def _least(self, threshold: float) -> list[int]:
        """Where each device stops at the earliest, if those after it run the rest; in execution order."""
        least, at = [], self.count
        for device in reversed(self.devices):
            least.append(at)
            at = device.earliest(at, threshold)
        return least[::-1]

    def under(self, threshold: float) -> Ints | None:
        """Where devices stop under a threshold, sorted; None where they cannot run everything."""
        least = self._least(threshold)
        if self.devices[0].earliest(least[0], threshold) > 0:
            return None
        reached = [np.zeros(1, dtype=np.int64)]
        for device, place in zip(self.devices, least, strict=True):
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
