"""The best pipeline over all ideals, with what none is below: thresholds from the bound up, or from an answer down."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.cutting import Window, Words, all_ideals
from fxpasses.partitioners.solvers.contiguous.dynamic_program import Measure
from fxpasses.partitioners.solvers.contiguous.improving import improved, improved_far
from fxpasses.partitioners.solvers.contiguous.searching import (
    BETTER,
    FEW_STATES,
    LONG,
    MAX_STATES,
    SOME_STATES,
    STEPS_A_SECOND,
    Answer,
    Search,
)
from fxpasses.partitioners.solvers.contiguous.states import States

__all__ = ["every_ideal", "smallest"]

MAX_UNITS = 8000
"""Units up to which all ideals are asked for."""
HALVINGS = 6
"""How often the interval is halved in which the least threshold lies that windows do not rule out."""
FEW = 1250
"""Ideals under the goal up to which windows need not be narrowed."""
MANY = 5000
"""Ideals from which on it is asked whether anything is better, not what is best."""
ATTEMPTS = ((0.0, 0.06), (0.06, 1.0))
"""Parts of the time left for the ideals near the cuts of an answer, and then for all; what is easy stays quick."""
MUCH = 4 * STEPS_A_SECOND
"""Steps from which on there is more than one attempt."""
ROOMS_SHARE = 0.15
"""The part of the time left that it may take to find out what each device can take with its transfers."""


def smallest(
    search: Search, bound: float, goal: float, budget: float, known: Answer | None = None
) -> tuple[Answer | None, float]:
    """The pipeline of the smallest value under a goal, over all ideals, and what no pipeline can be below.

    ``known`` is an answer of the search that reaches the goal, if there is one.

    The threshold starts near the bound, where few ideals are of interest, and grows. The second is ``goal`` or more if
    all was looked at and nothing found.
    """
    (steps, limit), proven = search.account.limits(budget), 0.0
    narrowed, climbs = search.narrowed(), False
    if narrowed.narrowing is not None and bound > 0 and every_ideal(search, goal, FEW) is None:
        search, bound = narrowed, _least_threshold(narrowed, bound, goal)
        proven, under_goal = bound, every_ideal(narrowed, goal, limit)
        climbs = under_goal is None
        if under_goal is not None and len(under_goal) > MANY:
            return _decided(search, proven, goal, (steps, limit), known)
    for below in _thresholds(bound, goal):
        words = every_ideal(search, below, limit)
        many = words is None or len(words) > MANY
        if words is None or (many and (not climbs or below >= goal)):
            return _decided(search, proven, goal, (steps, limit), known)
        outcome = (search.decide if many else search.run)(words, below, steps=steps)
        steps -= outcome.steps
        if outcome.pipeline is not None and many:
            known = improved(search, Answer.of(search, outcome.pipeline))
            return _decided(search, proven, known.by_value() * BETTER, (steps, limit), known)
        if outcome.pipeline is not None:
            return Answer.of(search, outcome.pipeline), outcome.pipeline.value * BETTER
        if not outcome.finished:
            break
        proven = below
    return None, proven


def _decided(
    search: Search, proven: float, goal: float, budget: tuple[float, int], best: Answer | None
) -> tuple[Answer | None, float]:
    """The same from above: ask for something better until there is nothing."""
    steps, limit = budget
    search = search.with_rooms(goal, ROOMS_SHARE * steps / STEPS_A_SECOND)
    proven = max(proven, 0.0 if search.rooms is None else search.rooms.bound() * BETTER)
    if States.count(search.classes) > SOME_STATES and steps < 1.5 * STEPS_A_SECOND:
        return best, proven
    is_near = search.units.size <= LONG and States.count(search.classes) <= FEW_STATES
    for near, share in ATTEMPTS if steps > MUCH else ATTEMPTS[-1:]:
        if best is not None and is_near:
            few = min(steps, max(STEPS_A_SECOND / 2, near * steps))
            best, finished = improved_far(search, best, few)
            steps -= 0.0 if finished else few  # everything takes more than what is near
            goal = min(goal, best.by_value() * BETTER)
        while (words := every_ideal(search, goal, limit)) is not None:
            outcome = search.decide(words, goal, share * steps)
            steps -= outcome.steps
            if outcome.pipeline is None:
                break
            found = Answer.of(search, outcome.pipeline)
            best = min(found, improved(search, found), key=Answer.by_value)
            goal = best.by_value() * BETTER
        if words is None or outcome.finished:
            return best, proven if words is None else goal
    return best, proven


def _least_threshold(search: Search, low: float, high: float) -> float:
    """The largest threshold up to ``high`` found to be out of reach by the windows alone; ``low`` is known to be."""
    if not math.isfinite(high):
        return low
    for _step in range(HALVINGS):
        middle = high if not _step else (low + high) / 2
        if _is_empty(search.measure(middle), search.states()):
            low = middle
        else:
            high = middle
    return low


def _is_empty(measure: Measure, states: States) -> bool:
    low, high = measure.window(states, float(measure.weight.sum()))
    return bool((low > high).all())


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
        not limit
        or (search.order is None and search.given is None and States.count(search.classes) > MAX_STATES)
        or search.units.size > MAX_UNITS
    ):
        return None
    if search.narrowing is not None and math.isfinite(below):
        words = search.narrowing.ideals(search.measure(below), limit)
        if words is not None:
            return words
        search = attrs.evolve(search, narrowing=None)  # its windows overlap, and it counts what is in each
    states = search.states() if most is None else States.of(search.classes, most)
    measure = search.measure(below)
    total = float(measure.weight.sum())
    low, high = measure.window(states, total)
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    begins = np.flatnonzero(np.append(True, low[1:] > high[:-1]))
    ends = np.append(begins[1:] - 1, len(low) - 1)
    return all_ideals(search.units, limit, Window(measure.weight, low[begins], high[ends]))
