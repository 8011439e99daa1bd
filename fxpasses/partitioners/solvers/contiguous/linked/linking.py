"""Pipelines over links that differ: the order of the devices decides which links are used.

With the devices in one order, values are charged over the link to the next device, and the dynamic program runs along
that order; the answer is then evaluated with the links as they are. Orders are improved by swaps; where devices are in
a few islands of fast links, each order of islands is tried. Small problems are proven by an integer program; others are
annealed in the end, with each value counted over the link that it takes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import attrs
import numpy as np

from fxpasses.partitioners.solvers.contiguous.absorbing import ordered
from fxpasses.partitioners.solvers.contiguous.certifying import every_ideal, smallest
from fxpasses.partitioners.solvers.contiguous.ideals.classes import Sending
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import Words, ideals_near, prefixes
from fxpasses.partitioners.solvers.contiguous.ideals.orders import linear_orders
from fxpasses.partitioners.solvers.contiguous.linked.islands import all_uses, between_devices, islands_of
from fxpasses.partitioners.solvers.contiguous.linked.link_answers import annealed
from fxpasses.partitioners.solvers.contiguous.long_graphs import is_long
from fxpasses.partitioners.solvers.contiguous.proving import proven_small
from fxpasses.partitioners.solvers.contiguous.recombining import Recombining
from fxpasses.partitioners.solvers.contiguous.searching import BETTER, Answer, Search

__all__ = ["by_links"]

NEAR = 100
LINEAR = 2
SEQUENCES = 100
"""Orders of islands up to which all of them are tried."""
MANY = 1000
"""Ideals up to which all of them are looked at for each order."""
CALL = 20e6
"""Steps that it takes to prepare one order."""


def by_links(search: Search, best: Answer, bound: float) -> tuple[Answer, float]:
    """An answer that is at least as good, and what no pipeline can be below. Spends about the budget, twice."""
    if is_long(search.units):
        return annealed(search, best, bound), bound
    steps, _limit = search.account.limits(search.problem.time_budget)
    found, proven = _between(search, best, bound)
    bound = max(bound, min(proven, best.rank[0]))
    answers = [_swapped_orders(search, each, bound, steps / 2) for each in (best, found) if each is not None]
    best, bound = proven_small(search, min(answers, key=Answer.by_rank), bound)
    return annealed(search, best, bound), bound


def _between(search: Search, best: Answer, bound: float) -> tuple[Answer | None, float]:
    """An answer of all orders over all ideals, where devices know the one before and the one after them; a bound."""
    linked = between_devices(search)
    if linked is None or not search.problem.time_budget:
        return None, bound
    with Recombining(linked) as beside:
        goal, budget = best.rank[0] * BETTER, search.problem.time_budget
        found, proven = smallest(linked, bound, goal, budget, recombining=beside)
    return None if found is None else Answer.of(search, found.pipeline), proven / BETTER


def _along(search: Search, order: tuple[int, ...]) -> Search:
    """The search with the devices in one order; values count over the link to the next one, and from the one before.

    That is an estimate. Values of backward nodes go the other way, and what may go either way counts at its best.
    """
    units, sending = search.units, Sending(search.tables, search.units, {})
    ahead, back = all_uses(units, ordered(units, back=False)), all_uses(units, ordered(units, back=True))
    plain = {device: group for group in search.classes for device in group.devices}
    found = []
    for place, device in enumerate(order):
        beside = order[place + 1 : place + 2], order[:place][-1:]
        out = [sending.best([(device, other) for other in others]) for others in beside]
        into = [sending.best([(other, device) for other in others]) for others in beside]
        found.append(
            attrs.evolve(
                plain[device],
                devices=(device,),
                leaving=np.where(ahead, out[0], np.where(back, out[1], np.minimum(*out))),
                entering=np.where(ahead, into[1], np.where(back, into[0], np.minimum(*into))),
            )
        )
    return attrs.evolve(search, classes=tuple(found), order=order)


def _swapped_orders(search: Search, best: Answer, bound: float, steps: float) -> Answer:
    """Swap two devices of the order, then try others, as long as that gives a better answer and steps are left."""
    unused = [device for device in range(len(search.tables.memory)) if device not in best.order]
    order = (*best.order, *unused)
    words = _family(search, best)
    islands = islands_of(search)
    island = {device: place for place, own in enumerate(islands) for device in own}
    waiting, seen = itertools.chain([order], _swaps(order), _sequences(islands)), set[tuple[int, ...]]()
    for candidate in waiting:
        if steps <= 0 or best.rank[0] <= bound:
            break
        alike = tuple(island[device] for device in candidate)
        if alike in seen:
            continue
        seen.add(alike)
        outcome = _along(search, candidate).run(words, best.rank[0] * BETTER, steps=steps)
        steps -= outcome.steps + CALL
        if outcome.pipeline is None:
            continue
        found = Answer.of(search, outcome.pipeline)
        if found.rank < best.rank:
            best, words = found, _family(search, found)
            waiting, seen = itertools.chain([candidate], _swaps(candidate), _sequences(islands)), set()
    return best


def _swaps(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for first, second in itertools.combinations(range(len(order)), 2):
        swapped = list(order)
        swapped[first], swapped[second] = order[second], order[first]
        yield tuple(swapped)


def _sequences(islands: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """An order for each sequence of islands, if these are few."""
    size = sum(map(len, islands))
    if math.factorial(size) / math.prod(math.factorial(len(own)) for own in islands) > SEQUENCES:
        return
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        held = waiting.pop()
        if len(held) == size:
            yield held
        for own in reversed(islands):
            waiting += [(*held, device) for device in own if device not in held][:1]


def _family(search: Search, best: Answer) -> Words:
    """All ideals where these are few; else prefixes of linear orders, and what lies near the cuts of an answer."""
    everything = every_ideal(search, best.rank[0], MANY)
    if everything is not None:
        return everything
    near = ideals_near(search.units, search.cuts(best.pipeline), NEAR)
    along = prefixes(linear_orders(search.units, LINEAR, search.problem.seed))
    return np.unique(np.concatenate([near, along]), axis=0)
