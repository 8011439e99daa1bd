"""Pipelines over links that differ: the order of the devices decides which links are used.

With the devices in one order, values are charged over the link to the next device, and the dynamic program runs along
that order; the answer is then evaluated with the links as they are. Orders are improved by swaps. For a few devices all
orders are bounded, each with the best links that it can use; the smallest of these bounds holds for every pipeline.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.classes import linked_classes
from fxpasses.partitioners.solvers.contiguous.cutting import Words, ideals_near, prefixes
from fxpasses.partitioners.solvers.contiguous.islands import between_devices
from fxpasses.partitioners.solvers.contiguous.orders import linear_orders
from fxpasses.partitioners.solvers.contiguous.searching import BETTER, LONG, Answer, Search, limits, smallest

__all__ = ["by_links"]

FEW_DEVICES = 4
NEAR = 100
LINEAR = 2


def by_links(search: Search, best: Answer, bound: float) -> tuple[Answer, float]:
    """An answer that is at least as good, and what no pipeline can be below. Spends about the budget, twice."""
    if search.units.size > LONG:
        return best, bound
    steps, _limit = limits(search.problem.time_budget)
    found, proven = _between(search, best, bound)
    bound = max(bound, min(proven, best.rank[0]))
    answers = [_swapped_orders(search, each, bound, steps / 2) for each in (best, found) if each is not None]
    best = min(answers, key=Answer.by_rank)
    if best.rank[0] * BETTER > bound and len(search.tables.memory) <= FEW_DEVICES and search.problem.time_budget:
        best, proven = _all_orders(search, best, bound)
        bound = max(bound, proven)
    return best, bound


def _between(search: Search, best: Answer, bound: float) -> tuple[Answer | None, float]:
    """An answer of all orders over all ideals, where devices know the one before and the one after them; a bound."""
    linked = between_devices(search)
    if linked is None or not search.problem.time_budget:
        return None, bound
    found, proven = smallest(linked, bound, best.rank[0] * BETTER, search.problem.time_budget)
    return None if found is None else Answer.of(search, found.pipeline), proven / BETTER


def _along(search: Search, order: tuple[int, ...], *, adjacent: bool) -> Search:
    classes = linked_classes(search.problem, search.tables, search.units, order, adjacent=adjacent)
    return attrs.evolve(search, classes=classes, order=order)


def _swapped_orders(search: Search, best: Answer, bound: float, steps: float) -> Answer:
    """Swap two devices of the order as long as that gives a better answer and steps are left."""
    unused = [device for device in range(len(search.tables.memory)) if device not in best.order]
    order = (*best.order, *unused)
    words = _family(search, best)
    waiting = iter([order, *_swaps(order)])
    for candidate in waiting:
        if steps <= 0 or best.rank[0] <= bound:
            break
        outcome = _along(search, candidate, adjacent=True).run(words, best.rank[0] * BETTER, steps=steps)
        steps -= outcome.steps + 1e6
        if outcome.pipeline is None:
            continue
        found = Answer.of(search, outcome.pipeline)
        if found.rank < best.rank:
            best, words = found, _family(search, found)
            waiting = iter([candidate, *_swaps(candidate)])
    return best


def _swaps(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for first, second in itertools.combinations(range(len(order)), 2):
        swapped = list(order)
        swapped[first], swapped[second] = order[second], order[first]
        yield tuple(swapped)


def _family(search: Search, best: Answer) -> Words:
    """Prefixes of linear orders, and what lies near the cuts of an answer."""
    near = ideals_near(search.units, search.cuts(best.pipeline), NEAR)
    along = prefixes(linear_orders(search.units, LINEAR, search.problem.seed))
    return np.unique(np.concatenate([near, along]), axis=0)


def _all_orders(search: Search, best: Answer, bound: float) -> tuple[Answer, float]:
    """The best of all orders of a few devices over all ideals, each with the best links that it can use."""
    orders = list(itertools.permutations(range(len(search.tables.memory))))
    budget = search.problem.time_budget / len(orders)
    lowest = math.inf
    for order in orders:
        found, proven = smallest(_along(search, order, adjacent=False), bound, best.rank[0] * BETTER, budget)
        lowest = min(lowest, max(proven, bound))
        if found is not None:
            best = min(best, Answer.of(search, found.pipeline), key=Answer.by_rank)
    return best, min(lowest / BETTER, best.rank[0])
