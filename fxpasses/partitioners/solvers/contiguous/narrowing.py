"""How narrow the windows of ideals are when devices must send: what crosses any cut between two weights, at least.

Prices alone leave a device all its time for units. But a device that runs from an ideal ``I`` to an ideal ``J`` also
receives what was made before ``I`` and is used before ``J``, and sends what it makes and others use after ``J``. Where
both ideals lie in windows, much about them is known: a unit whose ancestors weigh more than a window allows is in none
of its ideals, one whose descendants weigh too much to be left out is in all of them. What such a device sends at least
is then a minimum cut (Ford & Fulkerson 1956) between the units that ``J`` must hold and those that it cannot, over the
values that were surely not made before ``I``; and what it receives at least is one at ``I``, over the values that are
surely used before ``J``. Less time is left for units, the windows get narrower, and more is known: a few rounds.

A residual stream, a mask and rotary tables cross every cut of a transformer; without them the windows of a real one
hold millions of ideals, with them some hundreds.
"""

from __future__ import annotations

import math
from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.affordable import Affordable
from fxpasses.partitioners.solvers.contiguous.cutting import Words, weights_above
from fxpasses.partitioners.solvers.contiguous.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.dynamic_program import SLACK, Measure
from fxpasses.partitioners.solvers.contiguous.states import States
from fxpasses.partitioners.solvers.reduced.minimum_cuts import ENDLESS, least_cut
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = ["Narrowing"]

Bools = NDArray[np.bool_]
Windows = tuple[Floats, Floats]
Crossing = dict[tuple[int, int, int], tuple[float, float]]
"""For each move (state, state after it, class): what its device sends and receives at least."""

ROUNDS = 3


@attrs.frozen(eq=False)
class Narrowing:
    """What windows follow from prices and crossing values.

    Args:
        units: The reduced problem.
        classes: Its devices.
        states: In which numbers or order they are used.
        weight: What each unit weighs by the prices, ``(m,)``.
        price: What a second on a device of each class weighs at least.
    """

    units: Units
    classes: tuple[DeviceClass, ...]
    states: States
    weight: Floats
    price: Floats
    _known: dict[bytes, Measure] = attrs.field(factory=dict, init=False)

    @cached_property
    def _total(self) -> float:
        return float(self.weight.sum())

    @cached_property
    def _beside(self) -> tuple[Floats, Floats]:
        """For each unit the least weight of an ideal that holds it, and the most of one that does not."""
        units = self.units
        turned = attrs.evolve(units, before=(units.size - 1 - units.before)[:, ::-1])
        return weights_above(turned, self.weight[::-1])[::-1], self._total - weights_above(units, self.weight)

    @cached_property
    def _costs(self) -> tuple[Floats, Floats]:
        """What each value takes at least on the device that sends it, and on one that receives it, ``(q,)``."""
        leaving = np.min([group.leaving for group in self.classes], axis=0)
        return leaving, np.min([group.entering for group in self.classes], axis=0)

    def measure(self, plain: Measure) -> Measure:
        """The same measure with narrower windows; they are empty where no pipeline has so little room."""
        key = plain.room.tobytes()
        if key not in self._known:
            self._known[key] = attrs.evolve(plain, limits=self._windows(plain))
        return self._known[key]

    def _windows(self, plain: Measure) -> Windows:
        room, slack = plain.room, SLACK * self._total
        low, high = plain.window(self.states, self._total)
        for _round in range(ROUNDS):
            new_low, new_high = self._propagated(room, self._crossing((low, high)), low, high, slack)
            if new_low[0] > new_high[0]:
                return np.full(len(low), np.inf), np.full(len(low), -np.inf)
            alive = new_low <= new_high
            moved = np.maximum(new_low[alive] - low[alive], high[alive] - new_high[alive]).max()
            low, high = new_low, new_high
            if moved <= 0.01 * float(room.max()):
                break
        return low, high

    def ideals(self, narrow: Measure, limit: int) -> Words | None:
        """All ideals in some window at which a pipeline can afford to be cut, or None if there are too many."""
        low, high = narrow.window(self.states, self._total)
        crossing = self._crossing((low, high))
        found = {(low[state], high[state]): state for state in np.flatnonzero(low <= high).tolist()}
        every = [np.zeros((0, -(-self.units.size // 64) or 1), dtype=np.uint64)]
        for state in found.values():
            words = self._affordable(state, narrow.room, (low, high), crossing).ideals(limit)
            if words is None or sum(map(len, every)) + len(words) > limit:
                return None
            every.append(words)
        return np.unique(np.concatenate(every), axis=0)

    def _affordable(self, state: int, room: Floats, windows: Windows, crossing: Crossing) -> Affordable:
        """What the ideals of a state may send and receive; states of one window are the same in all that counts."""
        (low, high), (least, most), units = windows, self._beside, self.units
        same = np.flatnonzero((low == low[state]) & (high == high[state]))
        before = [(one, kind) for one, there, kind in crossing if there in same]
        after = [(there, kind) for one, there, kind in crossing if one in same]
        slack = SLACK * self._total
        far, near = math.inf, -math.inf
        sending, receiving = np.zeros((2, len(units.source)))
        if before:
            far = max(
                high[one] + room[kind] - self.price[kind] * crossing[one, there, kind][1]
                for one, there, kind in crossing
                if there in same
            )
            made = least[units.source] > max(high[one] for one, _kind in before)
            sending = made * self._costs[0] * min(self.price[kind] for _one, kind in before)
        if after:
            near = min(
                low[there] - room[kind] + self.price[kind] * crossing[one, there, kind][0]
                for one, there, kind in crossing
                if one in same
            )
            used = self._is_used(min(low[there] for there, _kind in after))
            receiving = used * self._costs[1] * min(self.price[kind] for _there, kind in after)
        return Affordable(
            units, self.weight, least, most, low[state], high[state], sending, receiving, far + slack, near - slack
        )

    def _propagated(self, room: Floats, crossing: Crossing, low: Floats, high: Floats, slack: float) -> Windows:
        """How far devices get from nothing on, and how far they may be in order to get to the end."""
        states, alive = self.states, low <= high
        reach = np.full(len(low), -np.inf)
        reach[0] = 0.0
        for state, moves in enumerate(states.moves):
            if not alive[state]:
                continue
            reach[state] = min(reach[state], high[state])
            for kind, there in moves:
                taken = self.price[kind] * sum(crossing.get((state, there, kind), (0.0,)))
                reach[there] = max(reach[there], reach[state] + room[kind] - taken)
            if states.skips[state] >= 0:
                reach[states.skips[state]] = max(reach[states.skips[state]], reach[state])
        high = np.minimum(high, reach + slack)
        needs = np.where(high >= self._total - slack, self._total, np.inf)
        for state in reversed(range(len(low))):
            for kind, there in states.moves[state]:
                if low[there] <= high[there]:
                    taken = self.price[kind] * sum(crossing.get((state, there, kind), (0.0,)))
                    needs[state] = min(needs[state], needs[there] - room[kind] + taken)
            if states.skips[state] >= 0:
                needs[state] = min(needs[state], needs[states.skips[state]])
            needs[state] = max(needs[state], low[state])
        return np.maximum(low, needs - slack), high

    def _crossing(self, windows: Windows) -> Crossing:
        """For each move what its device must send and receive at least, in seconds."""
        low, high = windows
        known: dict[tuple[float, ...], tuple[float, float]] = {}
        found = {}
        for state, moves in enumerate(self.states.moves):
            for kind, there in moves:
                if low[state] <= high[state] and low[there] <= high[there]:
                    key = (low[state], high[state], low[there], high[there])
                    if key not in known:
                        known[key] = self._sent(key), self._received(key)
                    found[state, there, kind] = known[key]
        return found

    def _sent(self, key: tuple[float, ...]) -> float:
        """Seconds for values that are made between the two windows and used behind the second."""
        least, _most = self._beside
        units = self.units
        return self._least_cut(key[2:], self._costs[0], least[units.source] > key[1])

    def _received(self, key: tuple[float, ...]) -> float:
        """Seconds for values that are made before the first window and used before the second."""
        return self._least_cut(key[:2], self._costs[1], self._is_used(key[2]))

    def _is_used(self, low: float) -> Bools:
        """Which values have a user that is in every ideal of some weight or more."""
        found = np.zeros(len(self.units.source), dtype=bool)
        np.logical_or.at(found, self.units.uses[:, 0], self._beside[1][self.units.uses[:, 1]] < low)
        return found

    def _least_cut(self, window: tuple[float, ...], cost: Floats, counts: Bools) -> float:
        """The least that the values which count and are open cost, at any ideal of a window."""
        units = self.units
        least, most = self._beside
        inside, outside = most < window[0], least > window[1]
        goes_on = np.zeros(len(units.source), dtype=bool)
        np.logical_or.at(goes_on, units.uses[:, 0], ~inside[units.uses[:, 1]])
        values = np.flatnonzero(counts & goes_on & ~outside[units.source] & (cost > 0))
        if not values.size:
            return 0.0
        source, sink = units.size + len(units.source), units.size + len(units.source) + 1
        vertex = np.where(inside, source, np.where(outside, sink, np.arange(units.size)))
        used = units.uses[np.isin(units.uses[:, 0], values)]
        edges = [
            (vertex[units.source[values]], units.size + values, cost[values]),
            (units.size + used[:, 0], vertex[used[:, 1]], np.full(len(used), ENDLESS)),
            (vertex[units.before[:, 1]], vertex[units.before[:, 0]], np.full(len(units.before), ENDLESS)),
        ]
        tails, heads, capacity = (np.concatenate(part) for part in zip(*edges, strict=True))
        return least_cut(tails, heads, capacity, source, sink)
