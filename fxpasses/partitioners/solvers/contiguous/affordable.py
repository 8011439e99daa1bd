"""The ideals of a window at which a pipeline can afford to be cut: what crosses there leaves too little time otherwise.

Ideals are made unit by unit, in topological order. As soon as a value is made inside and used outside it will cross,
whatever comes; an ideal is given up when the device that ends there would have to send more than its time allows, or
the one that begins there to receive more. In the middle of an attention head, where three values cross instead of one,
that leaves out almost everything.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.partitioners.solvers.contiguous.cutting import Words, masks
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats

__all__ = ["Affordable"]

Bools = NDArray[np.bool_]


@attrs.frozen(eq=False)
class Affordable:
    """What is known about the ideals of one window.

    Args:
        units: The reduced problem.
        weight: What each unit weighs, ``(m,)``.
        least: The least weight of an ideal that holds a unit, ``(m,)``.
        most: The most weight of an ideal that does not.
        low: The least weight of an ideal in the window.
        high: The most weight.
        sending: What each value weighs on the device that ends at the ideal, ``(q,)``; 0 where that is not sure.
        receiving: What each value weighs on the device that begins there.
        far: How much an ideal and what is sent there may weigh together.
        near: How much an ideal less what is received there has to weigh.
    """

    units: Units
    weight: Floats
    least: Floats
    most: Floats
    low: float
    high: float
    sending: Floats
    receiving: Floats
    far: float
    near: float

    def ideals(self, limit: int) -> Words | None:
        """All of them, or None if there are ever more than ``limit`` beginnings of some."""
        inside, outside = self.most < self.low, self.least > self.high
        free = np.flatnonzero(~inside & ~outside)
        found = np.zeros((1, -(-self.units.size // 64) or 1), dtype=np.uint64)
        for word, mask in masks(np.flatnonzero(inside).tolist()).items():
            found[:, word] = mask
        values = _Values.of(self, inside, outside)
        cost = np.array([values.sure.sum(axis=0)])
        taken, most = np.full(1, float(self.weight[inside].sum())), np.full(1, np.inf)
        for unit in free.tolist():
            ready = np.ones(len(found), dtype=bool)
            for word, mask in masks(self.units.predecessors[unit]).items():
                ready &= found[:, word] & mask == mask
            larger = found[ready]
            larger[:, unit // 64] |= np.uint64(1 << unit % 64)
            more = cost[ready] + values.made[unit]
            cost = cost + values.left_out(unit, found)
            taken, most, cost, found = (
                np.concatenate([taken, taken[ready] + self.weight[unit]]),
                np.concatenate([np.minimum(most, self.most[unit]), most[ready]]),
                np.concatenate([cost, more]),
                np.concatenate([found, larger]),
            )
            fine = self._is_affordable(taken, most, cost)
            taken, most, cost, found = taken[fine], most[fine], cost[fine], found[fine]
            if len(found) > limit:
                return None
        fine = self._is_affordable(taken, taken, cost)
        return np.ascontiguousarray(found[fine])

    def _is_affordable(self, taken: Floats, most: Floats, cost: Floats) -> Bools:
        fine: Bools = np.maximum(taken, self.low) + cost[:, 0] <= self.far
        fine &= np.minimum(most, self.high) - cost[:, 1] >= self.near
        return fine & (taken <= self.high) & (most >= self.low)


@attrs.frozen(eq=False)
class _Values:
    """When values begin to cross: what they weigh for the sender and the receiver, in two columns.

    Args:
        sure: What crosses at every ideal of the window.
        made: For each unit, what crosses as soon as the unit is inside.
        used: For each unit, its values with a mask of what must be inside, and of what is still inside, for the value
            to begin to cross when the unit is left out.
    """

    sure: Floats
    made: dict[int, Floats]
    used: dict[int, list[tuple[dict[int, np.uint64], dict[int, np.uint64], Floats]]]

    @classmethod
    def of(cls, window: Affordable, inside: Bools, outside: Bools) -> _Values:
        units = window.units
        weighs = np.stack([window.sending, window.receiving], axis=1)
        users: dict[int, list[int]] = {}
        for value, user in units.uses.tolist():
            users.setdefault(value, []).append(user)
        sure = np.zeros((1, 2))
        made: dict[int, Any] = {unit: np.zeros(2) for unit in range(units.size)}
        used: dict[int, list[Any]] = {}
        for value, source in enumerate(units.source.tolist()):
            if outside[source] or not weighs[value].any():
                continue
            if any(outside[user] for user in users[value]):
                if inside[source]:
                    sure = np.concatenate([sure, weighs[value][None]])
                else:
                    made[source] = made[source] + weighs[value]
                continue
            before: list[int] = []
            for user in sorted(user for user in users[value] if not inside[user] and user > source):
                maker = {} if inside[source] else masks([source])
                used.setdefault(user, []).append((maker, masks(before), weighs[value]))
                before.append(user)
        return cls(sure, made, used)

    def left_out(self, unit: int, found: Words) -> Floats:
        """What begins to cross at each ideal when a unit is left out."""
        more = np.zeros((len(found), 2))
        for maker, others, weighs in self.used.get(unit, ()):
            begins = np.ones(len(found), dtype=bool)
            for each in (maker, others):
                for word, mask in each.items():
                    begins &= found[:, word] & mask == mask
            more += begins[:, None] * weighs
        return more
