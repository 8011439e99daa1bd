"""In which order to use devices that are all different: a beam search over sets of devices, under a threshold.

Under a threshold on the load, and over the prefixes of one linear order, a set of used devices is worth the farthest
prefix that they can run. For few devices that is a dynamic program over all sets; here the best sets of each size are
kept: those that got farthest for the room that they had (beam search: Lowerre, "The HARPY speech recognition system",
1976). The threshold is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import CutFamily, prefixes
from fxpasses.partitioners.solvers.contiguous.ideals.device_class import DeviceClass
from fxpasses.partitioners.solvers.contiguous.ideals.spans import Spans
from fxpasses.partitioners.solvers.contiguous.tables.dynamic_program import Measure
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["Beam"]

WIDTH = 100_000
"""States that are kept for each number of devices, times the number of classes."""
HALVINGS = 10
SLACK = 1e-9


@attrs.frozen(eq=False)
class Beam:
    """The loads of all runs along one order, for each class of devices.

    Args:
        loads: For each class the load between two prefixes, ``(f, f)``; ``inf`` where it is not legal.
        classes: The devices.
    """

    loads: tuple[Floats, ...]
    classes: tuple[DeviceClass, ...]

    @classmethod
    def of(cls, units: Units, classes: tuple[DeviceClass, ...], credit: tuple[float, ...] | None) -> Beam:
        """Prepare the order in which the units are numbered. Time O(units² × classes)."""
        words = prefixes([range(units.size)])
        family = CutFamily.of(words, np.ones(units.size))
        everything = slice(0, family.count)
        return cls(tuple(Spans.of(units, family, classes, credit).loads(everything, everything, np.inf)), classes)

    def best_order(self, bound: float, measure: Callable[[float], Measure]) -> list[int] | None:
        """The devices in the order of the smallest threshold at which the beam finds one.

        Args:
            bound: Nothing is found below it.
            measure: For a threshold the weights and rooms that tell how far a set of devices should get.
        """
        share, found = 0.01, None
        while found is None and 0 < bound and share < 1e3:
            share *= 2
            found = self._order(bound * (1 + share), measure(bound * (1 + share)))
        if found is None:
            return self._order(np.inf, measure(np.inf))
        low, high = (0.0 if share == 0.02 else share / 2), share
        for _halving in range(HALVINGS):
            middle = (low + high) / 2
            better = self._order(bound * (1 + middle), measure(bound * (1 + middle)))
            low, high, found = (middle, high, found) if better is None else (low, middle, better)
        return found

    def fewest(self, least: int, most: int, measure: Measure) -> list[int] | None:
        """As few devices as the beam finds, from so many to so many, in an order in which they can run everything."""
        orders = (self._order(np.inf, measure, count) for count in range(least, most + 1))
        return next((order for order in orders if order is not None), None)

    def _order(self, below: float, measure: Measure, most: int | None = None) -> list[int] | None:
        """Devices in an order in which they can run everything under a threshold, if the beam finds one.

        With ``most`` there are so many at most, and only those are kept to which as many more as then are left can add
        what is missing.
        """
        count = len(self.loads[0])
        fine = np.stack([(load <= below) & (load < np.inf) for load in self.loads])
        reach = np.where(fine.any(axis=2), count - 1 - fine[:, :, ::-1].argmax(axis=2), np.arange(count))
        position = np.append(0.0, np.cumsum(measure.weight))
        room = np.where(np.isfinite(measure.room), measure.room, 0.0)
        sizes = np.array([len(group.devices) for group in self.classes])
        codes = np.random.default_rng(0).integers(2**62, size=len(sizes))
        used, at, code = (
            np.zeros((1, len(sizes)), dtype=np.int64),
            np.zeros(1, dtype=np.int64),
            np.zeros(1, dtype=np.int64),
        )
        history: list[tuple[Ints, Ints]] = []
        for step in range(int(sizes.sum()) if most is None else most):
            source, kind = np.nonzero(used < sizes)
            there = reach[kind, at[source]]
            own = code[source] + codes[kind]
            order = np.lexsort((-there, own))
            order = order[np.append(True, own[order][1:] != own[order][:-1])]  # the farthest of each set of devices
            source, kind, there = source[order], kind[order], there[order]
            after = used[source].copy()
            after[np.arange(len(source)), kind] += 1
            worth = position[there] - after @ room
            if most is not None:
                more = _largest(sizes - after, room, most - step - 1)
                fits = position[there] + more >= position[-1] * (1 - SLACK)
                source, kind, there, after = source[fits], kind[fits], there[fits], after[fits]
                worth, order = worth[fits], order[fits]
            if not len(worth):
                return None
            best = np.argsort(-worth, kind="stable")[: max(64, WIDTH // len(sizes) // 16)]
            history.append((source[best], kind[best]))
            used, at, code = after[best], there[best], own[order][best]
            done = np.flatnonzero(at == count - 1)
            if done.size:
                return self._back(history, int(done[0]))
        return None

    def _back(self, history: list[tuple[Ints, Ints]], state: int) -> list[int]:
        kinds: list[int] = []
        for source, kind in reversed(history):
            kinds.append(int(kind[state]))
            state = int(source[state])
        waiting = [list(group.devices) for group in self.classes]
        return [waiting[kind].pop(0) for kind in reversed(kinds)]


def _largest(left: Ints, room: Floats, count: int) -> Floats:
    """How much so many of the devices that are left, of each class so many, have room for at most, ``(n,)``."""
    order = np.argsort(-room, kind="stable")
    taken = np.minimum(np.cumsum(left[:, order], axis=1), count)
    more: Floats = np.diff(taken, axis=1, prepend=0) @ room[order]
    return more
