"""Better pipelines around one: the ideals near its cuts."""

from __future__ import annotations

import math

import numpy as np

from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words, ideals_near
from fxpasses.partitioners.solvers.contiguous.ideals.transfers import steps_of_open
from fxpasses.partitioners.solvers.contiguous.searching import BETTER, STEPS_A_SECOND, Answer, Search
from fxpasses.partitioners.solvers.contiguous.tables.dynamic_program import MAX_BLOCK

__all__ = ["NEAREST", "improved", "improved_far"]

NEAR, FAR, NEAREST = 300, 2000, 80
"""Ideals that are looked at around each cut of an answer, in a longer search, and where there are many states."""
ALL_NEAR = 20_000
FIRST_SHARE, LAST_SHARE = 0.02, 0.001
"""How much better an answer is asked for around the cuts of one."""
CALL = 10e6
"""Steps that it takes to prepare such a question."""


def improved(search: Search, best: Answer, steps: float = STEPS_A_SECOND, near: int = NEAR) -> Answer:
    """Look at some ideals around each cut of an answer as long as that helps."""
    while steps > 0:
        words = _near_cuts(search, best, min(near, _affordable(search, best, steps)))
        outcome = search.run(words, best.goal(search) * BETTER, steps=steps)
        steps -= outcome.steps
        found = None if outcome.pipeline is None else Answer.of(search, outcome.pipeline)
        if found is None or found.rank >= best.rank:
            break
        best = found
    return best


def improved_far(search: Search, best: Answer, steps: float) -> tuple[Answer, bool]:
    """Ask for something better among many ideals around the cuts: 2 % better first, in the end anything.

    Returns:
        The best answer, and whether the last question had an answer within the steps.
    """
    share, finished = FIRST_SHARE, True
    account = search.account
    while steps > 0:
        words = _near_cuts(search, best, FAR)
        outcome = search.decide(words, best.pipeline.value * (1 - share) * BETTER, steps)
        steps -= outcome.steps + CALL
        finished = outcome.finished
        if outcome.pipeline is not None:
            before = account.spent
            more = steps if account.is_limited else STEPS_A_SECOND
            found = improved(search, Answer.of(search, outcome.pipeline), more)
            steps -= account.spent - before if account.is_limited else 0.0
            if found.by_value() >= best.by_value():
                break
            best = found
        elif share:
            share = share / 4 if share > LAST_SHARE else 0.0
        else:
            break
    return best, finished


def _affordable(search: Search, best: Answer, steps: float) -> int:
    """How many ideals around each cut are looked at in half of some steps, where many values are open at a cut.

    A pair of ideals takes long then, and each ideal is a pair with those of its block, and with those around its own
    cut and around the next one.
    """
    cuts = len(best.pipeline.runs) - 1
    pair = steps_of_open(_most_open(search, best))
    if not cuts or not pair:
        return ALL_NEAR
    ideal = search.steps_of_ideal + pair * MAX_BLOCK
    return max(1, int((math.sqrt(ideal**2 + 4 * pair * steps / cuts) - ideal) / (4 * pair)))


def _most_open(search: Search, best: Answer) -> int:
    """How many values are open at most at a cut."""
    place = np.zeros(search.units.size, dtype=np.int64)
    for number, (_device, units) in enumerate(best.pipeline.runs):
        place[list(units)] = number
    value, user = search.units.uses.T
    made = place[search.units.source]
    last = made.copy()
    np.maximum.at(last, value, place[user])
    change = np.bincount(made, minlength=len(best.pipeline.runs)) - np.bincount(last, minlength=len(best.pipeline.runs))
    return int(np.cumsum(change).max(initial=0))


def _near_cuts(search: Search, best: Answer, limit: int) -> Words:
    cuts = search.cuts(best.pipeline)
    return ideals_near(search.units, cuts, min(limit, ALL_NEAR // max(1, len(cuts))))
