"""The best pipeline over all ideals, with what none is below: thresholds from the bound up, or from an answer down."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Window, Words, all_ideals
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.improving import improved, improved_far
from fxpasses.partitioners.solvers.contiguous.long_graphs import MAX_UNITS, is_long
from fxpasses.partitioners.solvers.contiguous.recombining import SLOW, Recombining
from fxpasses.partitioners.solvers.contiguous.refined.refining import PREPARING
from fxpasses.partitioners.solvers.contiguous.searching import (
    BETTER,
    FEW_STATES,
    IDEALS_A_SECOND,
    MAX_STATES,
    SOME_STATES,
    STEPS_A_SECOND,
    Answer,
    Search,
)

__all__ = ["every_ideal", "smallest", "within"]

FEW = 1250
"""Ideals under the goal up to which they need not be refined."""
WAITING = 0.5
"""The part of the seconds of the first annealings that refining takes before they are waited for."""
NEXT = 0.4
"""Where the next threshold lies between what is proven and the goal: above the best value it takes much more."""
ENOUGH, NEARER = 0.002, 0.0001
"""How near the thresholds come to each other that are and are not ruled out; nearer where the goal takes too much."""
QUICK, DECIDING = 0.65, 0.75
"""How much of the steps goes into refining at first, and of the others into all ideals."""
SHARE, AFTERWARDS = 0.5, 0.8
"""How much of what is left then goes into each threshold, and once that did not reach; all where steps are few."""
LOOKS = 1000
"""How often each ideal may be looked at while they are found, more where few are asked for."""
MANY = 5000
"""Ideals from which on it is asked whether anything is better, not what is best."""
ATTEMPTS = ((0.0, 0.06), (0.1, 1.0))
"""Parts of the time left for the ideals near the cuts of an answer, and then for all; what is easy stays quick."""
AT_FIRST, AGAIN = STEPS_A_SECOND, 5 * STEPS_A_SECOND
"""The most steps of the first attempts to refine; there is one where steps are few."""
LITTLE, ALONE = 1.5 * STEPS_A_SECOND, 0.7
"""Steps within which problems with many states are refined once, with so many of them, or not proven."""
MUCH = 4 * STEPS_A_SECOND
"""Steps from which on there is more than one attempt."""
RECOMBINING = 0.2
"""Seconds in which answers are recombined where the first attempt to refine leaves a gap; half after narrowing."""
PART = 0.15
"""The part of much time for that where many states leave nothing else to try."""
NARROWING, LONGER = 0.8 * STEPS_A_SECOND, 0.05
"""Steps of narrowing where there is a second, and where there is much time a part of it."""
BEFOREHAND, LEAST = 1.6 * STEPS_A_SECOND, 0.3 * STEPS_A_SECOND
"""Narrowing takes no longer than until all took so much; and what it takes at least."""
CORES = 20
"""How many cores a try of it goes through."""
PROMISING, VAIN = 500, 3
"""How many ideals these are near the goal, twice as many from the bound on; how many times in turn nothing is found."""
NEAR_GOAL = 0.1
"""How far before the goal thresholds begin where that is near, as a share of the gap."""
ROOMS_SHARE = 0.3
"""The part of the time left that it may take to find out what each device can take with its transfers."""


def smallest(
    search: Search,
    bound: float,
    goal: float,
    budget: float,
    known: Answer | None = None,
    recombining: Recombining | None = None,
) -> tuple[Answer | None, float]:
    """The pipeline of the smallest value under a goal, over all ideals, and what no pipeline can be below.

    ``known`` is an answer of the search that reaches the goal, if there is one. ``recombining`` looks for better ones
    beside what is done here, and may have begun; without it only the bound is worked on.

    The threshold starts near the bound, where few ideals are of interest, and grows. The second is ``goal`` or more if
    all was looked at and nothing found.
    """
    (steps, limit), proven, count = search.account.limits(budget), 0.0, 0
    if bound > 0 and math.isfinite(goal) and search.can_refine and every_ideal(search, goal, FEW) is None:
        gap = _Gap(search, known, goal, bound, recombining or Recombining(search, is_idle=True))
        _work_on(gap, (steps, limit))
        return gap.best, gap.proven
    at_once = is_long(search.units)  # the ideals of a long graph take longer to prepare than to go along
    for below in (goal,) if at_once else _thresholds(bound, goal):
        words = every_ideal(search, below, min(limit, search.affordable(steps)))
        if words is None or len(words) > MANY:
            return _decided(search, proven, goal, (steps, limit), known)
        if len(words) == count and below < goal:  # no more of them by a higher threshold: then at once by the goal
            continue
        count, outcome = len(words), search.run(words, below, steps=steps)
        steps -= outcome.steps
        if outcome.pipeline is not None:
            return Answer.of(search, outcome.pipeline), outcome.pipeline.value * BETTER
        if not outcome.finished:
            break
        proven = below
    if proven < goal < math.inf:
        proven = max(proven, search.with_rooms(goal, ROOMS_SHARE * steps / STEPS_A_SECOND).least)
    return None, proven


@attrs.define
class _Gap:
    """The best answer so far, what a better one is below, what none is below, and what looks for better ones beside."""

    search: Search
    best: Answer | None
    goal: float
    proven: float
    recombining: Recombining
    has_recombined: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left between the two."""
        return self.proven >= self.goal * BETTER

    @property
    def is_wide(self) -> bool:
        """Whether more is left than what a default answer may be off."""
        return self.goal - self.proven > ENOUGH * self.proven

    def recombine_first(self) -> None:
        """Look once at what the first short annealings came to; those of the first round begin."""
        if self.best is not None and not self.is_closed and not self.has_recombined:
            self.has_recombined = True
            self._take(self.recombining.put_first_together(self.best, self.seconds))

    @property
    def seconds(self) -> float:
        """How long the first round may take."""
        return min(RECOMBINING, self.search.problem.time_budget)

    def recombine(self, seconds: float) -> None:
        """Look for something better by short annealings, from the best answer."""
        if self.best is not None and not self.is_closed and self.recombining.has_time:
            self._take(self.recombining.better(self.best, self.proven, seconds))

    def _take(self, best: Answer) -> None:
        self.best, self.goal = best, min(self.goal, best.rank[0] * BETTER)

    def narrow(self, steps: float, *, is_near: bool) -> None:
        """Look for something better among the most promising ideals, and among ever more of them, until that is vain.

        Thresholds begin at the bound; or near the goal once something was found, or if that ``is_near`` the best value,
        below which nothing is found.
        """
        account, most, vain = self.search.account, PROMISING if is_near else 2 * PROMISING, 0
        least = self._near_goal if is_near else self.proven
        begun, last = account.spent, float(2 * CORES * PREPARING * PROMISING * self.search.units.size)
        while not self.is_closed and vain < VAIN and account.spent - begun + last / 2 < steps:
            before = account.spent
            words = self.search.promising(least, self.goal, most, steps - (before - begun)).words
            found = None if words is None else self.search.run(words, self.goal).pipeline
            last = account.spent - before
            if found is not None:
                self.best = Answer.of(self.search, found)
                self.goal, vain = self.best.by_value() * BETTER, 0
                most, least = PROMISING, self._near_goal
            else:
                most, vain, last = 2 * most, vain + 1, 2 * last
                least = (least + self.goal) / 2

    @property
    def _near_goal(self) -> float:
        return self.goal - NEAR_GOAL * (self.goal - self.proven)

    def refine(self, below: float, steps: float, limit: int, *, lowers: bool) -> None:
        """Ask for something better under a threshold; if it ``lowers``, a lower one where the steps do not reach.

        Not where the bound is near.
        """
        lowers = lowers and self.is_wide
        refined = self.search.refined(below, steps, limit, self.proven if lowers else below, self._look)
        if refined.words is None:
            return
        outcome = self.search.run(refined.words, self.goal, steps=max(steps - refined.steps, refined.steps / 2))
        if not outcome.finished:
            return
        if outcome.pipeline is not None:
            self.best = Answer.of(self.search, outcome.pipeline)
            self.goal = self.best.by_value() * BETTER
        self.proven = max(self.proven, min(self.goal, refined.below))

    def _look(self, steps: float) -> float:
        """Let annealings begin where refining has taken long, and wait for the first of them where it takes longer.

        What they find is mostly so much better that far fewer ideals are left to refine. In long graphs it takes longer
        to put that together than to refine.
        """
        if steps > SLOW and self.best is not None:
            self.recombining.begin(self.best)
        is_slow = steps > STEPS_A_SECOND * WAITING * self.recombining.first_seconds
        if is_slow and self.is_wide and not is_long(self.search.units):
            self.recombine_first()
        return self.goal


def _work_on(gap: _Gap, budget: tuple[float, int]) -> None:
    """Refine a little, decide over all ideals, then refine with all that is left: one of them is mostly quick.

    Where none is, much time that is left goes into a better answer. Where only the bound counts, little time goes into
    the first of them.
    """
    (steps, limit), search, begun = budget, gap.search, gap.search.account.spent
    goal, is_alone = gap.goal, search.has_many_states
    first = ALONE * steps if is_alone and steps < LITTLE else min(QUICK * steps, AT_FIRST)
    gap.refine(goal, first, limit, lowers=True)
    if gap.recombining.is_idle and steps < LITTLE:
        return
    if gap.is_wide:
        _improve(gap, steps)
    if steps > MUCH and not gap.is_closed:
        left = steps - (search.account.spent - begun)
        gap.refine(gap.goal, QUICK * left if is_alone else min(QUICK * steps, AGAIN), limit, lowers=is_alone)
    if not gap.is_closed and not is_alone:
        left = steps - (search.account.spent - begun)
        gap.best, gap.proven = _decided(search, gap.proven, gap.goal, (DECIDING * left, limit), gap.best)
        gap.goal = gap.goal if gap.best is None else min(gap.goal, gap.best.by_value() * BETTER)
    if not gap.is_closed:
        _close(gap, steps - (search.account.spent - begun), limit)
    left = steps - (search.account.spent - begun)
    if not gap.is_closed and left > MUCH:
        goal = gap.goal
        gap.recombine(left / 2 / STEPS_A_SECOND)
        if gap.goal < goal:
            _close(gap, steps - (search.account.spent - begun), limit)


def _improve(gap: _Gap, steps: float) -> None:
    """Look for something better by annealings, and among the most promising ideals where states are few.

    Not in long graphs, where one try of either takes longer than all else.
    """
    if is_long(gap.search.units) or gap.recombining.is_idle:
        return
    seconds, goal = gap.seconds, gap.goal
    gap.recombine_first()
    if gap.search.has_many_states:
        gap.recombine(max(seconds, PART * steps / STEPS_A_SECOND))
    else:
        most = min(NARROWING, max(LEAST, BEFOREHAND - gap.search.account.spent))
        few = max(most * min(1.0, gap.search.problem.time_budget), LONGER * steps)
        gap.narrow(few, is_near=gap.goal < goal)
        gap.recombine(seconds / 2)


def _close(gap: _Gap, steps: float, limit: int) -> None:
    """Refine between the bound and the goal; the goal itself once that is near."""
    account, high, enough, share = gap.search.account, gap.goal, ENOUGH, SHARE
    begun, took = account.spent, list[tuple[float, float]]()
    while not gap.is_closed and (left := steps - (account.spent - begun)) > 0:
        high, known = min(high, gap.goal), gap.proven
        is_near = high - known <= enough * known
        if is_near and (high < gap.goal or enough < ENOUGH):
            break
        few, before = share * left if steps > MUCH else left, account.spent
        below = gap.goal if is_near else min(known + NEXT * (high - known), within(took, few))
        gap.refine(below, few, limit, lowers=steps <= MUCH)
        if gap.proven >= min(below, gap.goal):
            took.append((below, account.spent - before))
            continue
        if steps <= MUCH and gap.proven <= known:
            break
        share = AFTERWARDS
        if is_near:
            enough = NEARER
        else:
            high = below


def within(took: list[tuple[float, float]], steps: float) -> float:
    """The threshold that takes some steps, if they grow by as many times for each step up as between the last two.

    ``took`` are thresholds with the steps that they took. Anything goes where that says nothing.
    """
    if len(took) < 2 or not 0 < took[-2][1] < took[-1][1] < steps:
        return math.inf
    (first, less), (second, more) = took[-2:]
    return second + (second - first) * math.log(steps / more) / math.log(more / less)


def _decided(
    search: Search, proven: float, goal: float, budget: tuple[float, int], best: Answer | None
) -> tuple[Answer | None, float]:
    """The same from above: ask for something better until there is nothing."""
    steps, limit = budget
    if States.count(search.classes) > SOME_STATES and steps < LITTLE:  # nothing has an answer in so few
        return best, proven
    is_near = not is_long(search.units) and States.count(search.classes) <= FEW_STATES
    for near, share in ATTEMPTS if steps > MUCH else ATTEMPTS[-1:]:
        if best is not None and is_near:
            few = min(steps, max(STEPS_A_SECOND / 2, near * steps))
            best, finished = improved_far(search, best, few)
            steps -= 0.0 if finished else few  # everything takes more than what is near
            goal = min(goal, best.by_value() * BETTER)
        most = min(limit, search.affordable(share * steps))
        if (words := every_ideal(search, goal, most)) is not None:
            search = search.with_rooms(goal, ROOMS_SHARE * steps / STEPS_A_SECOND)
            proven = max(proven, search.least)
        while words is not None:
            outcome = search.decide(words, goal, share * steps)
            steps -= outcome.steps
            if outcome.pipeline is None:
                break
            found = Answer.of(search, outcome.pipeline)
            best = min(found, improved(search, found), key=Answer.by_value)
            goal = best.by_value() * BETTER
            words = every_ideal(search, goal, most)
        if words is not None and outcome.finished:
            return best, goal
        if words is None and most == limit:
            break
    return best, proven


def _thresholds(bound: float, goal: float) -> Iterator[float]:
    """From just above the bound to the goal, in steps that double."""
    share = 0.01
    while bound > 0 and bound * (1 + share) < goal and share < 3:
        yield bound * (1 + share)
        share *= 2
    yield goal


def every_ideal(search: Search, below: float, limit: int, most: int | None = None) -> Words | None:
    """All ideals that a pipeline under a threshold may cut at, or None when there are too many."""
    if (
        limit <= 0
        or (search.order is None and search.given is None and States.count(search.classes, most) > MAX_STATES)
        or search.units.size > MAX_UNITS
    ):
        return None
    states = search.states if most is None else States.of(search.classes, most)
    measure = search.measure(below)
    total = float(measure.weight.sum())
    low, high = measure.window(states, total)
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    begins = np.flatnonzero(np.append(True, low[1:] > high[:-1]))
    ends = np.append(begins[1:] - 1, len(low) - 1)
    window = Window(measure.weight, low[begins], high[ends])
    return all_ideals(search.in_order, limit, window, LOOKS * max(limit, IDEALS_A_SECOND))
