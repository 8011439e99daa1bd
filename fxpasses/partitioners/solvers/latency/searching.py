"""The shortest time for one sample: list schedules first, then one of them is annealed, change by change.

It starts from the best schedules that simple rules and pipelines give, and goes on from the best that was found, round
by round. Budgets are counted in nodes that are looked at, not in seconds, so the answer is the same on every machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from fxpasses.partitioners.solvers.latency.annealing import Annealing, Found
from fxpasses.partitioners.solvers.latency.levels import LatencyAnswer, Level
from fxpasses.partitioners.solvers.latency.list_schedules import rules
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["LatencySearch", "started"]

WORK_A_SECOND = 12_000_000
"""Nodes that are looked at in a second, about."""
SEARCH_FIRST = 0.03
"""Seconds of search whatever the budget."""
LOOKS_OF_ROUND = 20_000
"""Looks at each node in the first round."""
GROWTH = 2.0
"""How much longer each round is than the one before it."""
STARTS, HALVING = 16, 0.4
"""How many of the first pipelines are annealed, which moves do not change as much, and the share of the work for it."""
FROM_START, HOT = 0.4, (0.3, 0.1)
FROM_BEST, WARM = 0.2, (0.03, 0.1)
"""Shares of a round, and temperatures at which they begin in turn, in seconds of a usual node."""
WINDOWS, WINDOW = 0.4, 64
"""The share for nodes that start one after the other, annealed alone, and how many these are."""
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
        return self.run_from([*starts, *rules(self.level)])

    def run_from(self, starts: Sequence[Ints], most: float = math.inf) -> LatencyAnswer:
        """Search from some assignments of units, if one of them takes less than the most that is worth it."""
        starting = started(self.level, starts)
        first = starting[0]
        if first.value >= most or first.value <= self.goal:
            return first
        annealing = Annealing(self.level, self.goal, np.random.default_rng(self.seed))
        legal = [Found(start.home, start.order, start.value) for start in starting if math.isfinite(start.value)]
        best = self._annealed(annealing, legal, WORK_A_SECOND * (SEARCH_FIRST + self.budget))
        return first if best.value >= first.value else self.level.scheduled(best.home, best.order)

    def _annealed(self, annealing: Annealing, starts: list[Found], work: float) -> Found:
        """In rounds that become longer: from a start, then from the best, then window by window."""
        start = starts[0]
        if self.level.flow is not None:
            start = self._halved(annealing, self._from_each_order(starts)[:STARTS], HALVING * work)
            work *= 1 - HALVING
        best = start
        for number, steps in enumerate(_rounds(LOOKS_OF_ROUND * len(self.level.unit_of), work)):
            hot, warm = HOT[number % len(HOT)], WARM[number % len(WARM)]
            best = min(best, annealing.improved(start, FROM_START * steps, hot), key=_value)
            best = min(best, annealing.improved(best, FROM_BEST * steps, warm), key=_value)
            best = self._by_windows(annealing, best, WINDOWS * steps)
            if best.value <= self.goal:
                break
        return best

    def _from_each_order(self, starts: list[Found]) -> list[Found]:
        """First the best of each order in which devices begin, as changes hardly lead from one to another."""
        best: dict[tuple[int, ...], int] = {}
        for number, start in enumerate(starts):
            devices = start.home[self.level.unit_of[start.order]]
            best.setdefault(tuple(dict.fromkeys(devices.tolist())), number)
        others = sorted(set(range(len(starts))) - set(best.values()))
        return [starts[number] for number in (*best.values(), *others)]

    def _halved(self, annealing: Annealing, starts: list[Found], work: float) -> Found:
        """Anneal all a little, the better half of them twice as long, and so on (Jamieson, Talwalkar 2016)."""
        rounds = math.ceil(math.log2(len(starts) + 1))
        for number in range(rounds):
            each, hot = work / (rounds * len(starts)), HOT[number % len(HOT)]
            starts = sorted((annealing.improved(start, each, hot) for start in starts), key=_value)
            starts = starts[: math.ceil(len(starts) / 2)]
        return starts[0]

    def _by_windows(self, annealing: Annealing, best: Found, work: float) -> Found:
        """Anneal nodes that run at about the same time, now here, now there, as deep graphs allow."""
        count = len(self.level.unit_of)
        size = min(count, WINDOW)
        each = size * min(max(LOOKS[0], work / (4 * count)), LOOKS[1])
        for number in range(int(work / each)):
            if best.value <= self.goal:
                break
            first = int(annealing.draw.integers(count - size + 1))
            hot = WINDOW_HOT[number % len(WINDOW_HOT)]
            best = min(annealing.improved(best, each, hot, slice(first, first + size)), best, key=_value)
        return best


def _rounds(first: float, work: float) -> Iterator[float]:
    """The work of each round; the last one takes what is left."""
    for index in itertools.count():
        steps = first * GROWTH**index
        if steps * (1 + GROWTH) > work:
            yield work
            return
        work -= steps
        yield steps


def _value(found: Found) -> float:
    return found.value


def started(level: Level, homes: Sequence[Ints]) -> list[LatencyAnswer]:
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
