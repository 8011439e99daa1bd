"""The shortest time for one sample: list schedules first, then one of them is annealed, change by change.

It starts from the best schedules that simple rules and pipelines give, then again and again from the best that was
found. Budgets are counted in nodes that are looked at, not in seconds, so the answer is the same on every machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import attrs
import numpy as np

from fxpasses.partitioners.solvers.latency.levels import LatencyAnswer, Level
from fxpasses.partitioners.solvers.latency.list_schedules import rules
from fxpasses.partitioners.solvers.latency.rooms import Rooms
from fxpasses.partitioners.solvers.latency.shifting import Found, Shifting
from fxpasses.partitioners.solvers.latency.timelines import Timeline
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["LatencySearch"]

WORK_A_SECOND = 900_000
"""Nodes that are looked at in a second, about."""
SEARCH_FIRST = 0.03
"""Seconds of search whatever the budget."""
MANY_LOOKS = (20_000, 300)
"""For so many looks at each node there is one more start; for pipelines, which moves do not change as much, sooner."""
MOST_STARTS = (2, 12)
FIRST = (0.3, 0.3)
LATER = ((0.2, 0.03),)
"""Shares of the work, and temperatures at which they begin, in seconds of a usual node."""
COLD = 0.002
"""The temperature at which each annealing ends."""
WINDOWS, WINDOW = 0.5, 64
"""The share of the work for nodes that start one after the other, annealed alone, and how many these are."""
LOOKS = (300, 4000)
"""How often each of them is looked at, at least and at most."""
WINDOW_HOT = (0.3, 0.1, 0.03)


@attrs.frozen(eq=False)
class LatencySearch:
    """A search for the assignment and order of the smallest makespan.

    Args:
        level: The problem.
        bound: No schedule is shorter.
        budget: About how many seconds the search may take on a machine of 2024.
        seed: For everything that is drawn.
    """

    level: Level
    bound: float
    budget: float
    seed: int

    @property
    def goal(self) -> float:
        """A schedule that needs no more search."""
        return self.bound * (1 + 1e-9)

    def run(self, starts: Sequence[Ints]) -> LatencyAnswer:
        """Search from some assignments of units, and from those of simple rules."""
        level, draw = self.level, random.Random(self.seed)
        starting = _started(level, [*starts, *rules(level)])
        first = starting[0]
        if math.isinf(first.value) or first.value <= self.goal:
            return first
        best = self._annealed(starting, WORK_A_SECOND * (SEARCH_FIRST + self.budget), draw)
        if best.value >= first.value:
            return first
        return level.scheduled(np.array(best.home), np.array(best.order))

    def _annealed(self, starts: list[LatencyAnswer], work: float, draw: random.Random) -> Found:
        """From the best starts, then from the best again and again."""
        share, hot = FIRST
        legal = [start for start in starts if math.isfinite(start.value)]
        flows = self.level.flow is not None
        count = 1 + int(work / (MANY_LOOKS[flows] * len(self.level.unit_of)))
        legal = legal[: min(count, MOST_STARTS[flows])]
        each = share * work / len(legal)
        found = [self._once(start.home.tolist(), start.order.tolist(), each, hot, draw) for start in legal]
        best = min(found, key=_value)
        for share, hot in LATER:
            if best.value > self.goal:
                best = min(self._once(best.home, best.order, share * work, hot, draw), best, key=_value)
        return self._by_windows(best, WINDOWS * work, draw)

    def _by_windows(self, best: Found, work: float, draw: random.Random) -> Found:
        """Anneal nodes that run at about the same time, now here, now there, as deep graphs allow."""
        count = len(self.level.unit_of)
        size = min(count, WINDOW)
        each = size * min(max(LOOKS[0], work / (4 * count)), LOOKS[1])
        for number in range(int(work / each)):
            if best.value <= self.goal:
                break
            first = draw.randrange(count - size + 1)
            hot = WINDOW_HOT[number % len(WINDOW_HOT)]
            nodes = best.order[first : first + size]
            best = min(self._once(best.home, best.order, each, hot, draw, nodes), best, key=_value)
        return best

    def _once(
        self,
        home: list[int],
        order: list[int],
        work: float,
        hot: float,
        draw: random.Random,
        nodes: Sequence[int] | None = None,
    ) -> Found:
        level = self.level
        wide = np.array(home, dtype=np.int64)[level.unit_of].tolist()
        pairs = None if level.flow is None else level.flow.pairs
        timeline, rooms = Timeline(level.network, wide, order), Rooms(level.model, pairs, home)
        shifting = Shifting(timeline, rooms, level.unit_of.tolist(), draw)
        if nodes is None:
            shifting.push()
        else:
            shifting.only(nodes)
        return shifting.run(work, level.usual * hot, level.usual * COLD, self.goal)


def _value(found: Found) -> float:
    return found.value


def _started(level: Level, homes: Sequence[Ints]) -> list[LatencyAnswer]:
    """Some assignments, each with two orders, the best first; those that are not allowed only if no other is."""
    scheduler = level.scheduler
    rows = np.unique(np.stack(homes), axis=0)
    rows = rows[np.flatnonzero(level.legal(rows))] if level.legal(rows).any() else rows
    wide, legal = rows[:, level.unit_of], level.legal(rows)
    orders = scheduler.by_rank(wide)
    found = []
    for _ in range(2):
        times = scheduler.times(wide, orders)
        values = np.where(legal, times.makespan, np.inf).tolist()
        found += [LatencyAnswer(*each) for each in zip(rows, orders, times.start, values, strict=True)]
        orders = scheduler.justified(wide, times)
    found.sort(key=lambda answer: answer.value)
    distinct = {answer.home.tobytes(): answer for answer in reversed(found)}
    return sorted(distinct.values(), key=lambda answer: answer.value)
