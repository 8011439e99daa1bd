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
import networkx as nx
import numpy as np

from fxpasses.partitioners.solvers.annealing.annealer import STEPS_PER_SECOND, Annealer
from fxpasses.partitioners.solvers.annealing.graphs import Plan
from fxpasses.partitioners.solvers.contiguous.absorbing import ordered
from fxpasses.partitioners.solvers.contiguous.certifying import every_ideal, smallest
from fxpasses.partitioners.solvers.contiguous.classes import Sending
from fxpasses.partitioners.solvers.contiguous.cutting import Words, ideals_near, prefixes
from fxpasses.partitioners.solvers.contiguous.dynamic_program import Pipeline
from fxpasses.partitioners.solvers.contiguous.islands import all_uses, between_devices, islands_of
from fxpasses.partitioners.solvers.contiguous.orders import linear_orders
from fxpasses.partitioners.solvers.contiguous.searching import BETTER, LONG, Answer, Search
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING, least_load, program_size
from fxpasses.partitioners.solvers.proofs.ordering import add_order
from fxpasses.partitioners.solvers.proofs.programs import nodes_within
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["by_links"]

NEAR = 100
LINEAR = 2
SEQUENCES = 100
"""Orders of islands up to which all of them are tried."""
MANY = 1000
"""Ideals up to which all of them are looked at for each order."""
CALL = 20e6
"""Steps that it takes to prepare one order."""
CLOSE = 1e-3
"""Answers that are so near the bound are not annealed."""
ANNEALING = (0.1, 0.2)
"""Annealings, one after the other, as shares of the budget."""
HOT, COLD, SQUARINGS = 0.1, 2e-4, 4
"""Temperatures and norm of these."""
MATRIX = 5_000_000
"""Units times pairs of devices up to which there are any."""
SMALL = 400
"""Variables up to which the integer program is asked."""
NODES = 1000
"""Branch-and-bound nodes of the program."""


def by_links(search: Search, best: Answer, bound: float) -> tuple[Answer, float]:
    """An answer that is at least as good, and what no pipeline can be below. Spends about the budget, twice."""
    if search.units.size > LONG:
        return _annealed(search, best, bound), bound
    steps, _limit = search.account.limits(search.problem.time_budget)
    found, proven = _between(search, best, bound)
    bound = max(bound, min(proven, best.rank[0]))
    answers = [_swapped_orders(search, each, bound, steps / 2) for each in (best, found) if each is not None]
    best, bound = _proven(search, min(answers, key=Answer.by_rank), bound)
    return _annealed(search, best, bound), bound


def _annealed(search: Search, best: Answer, bound: float) -> Answer:
    """The best of some annealings, each from the best before it."""
    budget, kinds = search.problem.time_budget, len(search.tables.memory)
    if not budget or best.rank[0] <= bound * (1 + CLOSE) or search.units.size * kinds**2 > MATRIX:
        return best
    annealer = Annealer(LoadModel.of(search.units, search.tables), search.units.before)
    draw = np.random.default_rng(search.problem.seed)
    for share in ANNEALING:
        home = np.zeros(search.units.size, dtype=np.int64)
        home[search.units.unit_of] = best.device_of
        order = [*best.order, *(device for device in range(kinds) if device not in best.order)]
        plan = Plan(share * budget * STEPS_PER_SECOND, HOT, COLD, SQUARINGS)
        found, _state = annealer.run(home, plan, draw, order)
        if found is not None:
            best = min(best, _answer(search, found), key=Answer.by_rank)
    return best


def _proven(search: Search, best: Answer, bound: float) -> tuple[Answer, float]:
    """What an integer program over units adds, which knows all links: a better answer, a better bound."""
    model, flow = LoadModel.of(search.units, search.tables), search.units.before
    if best.rank[0] <= bound or program_size(model) > SMALL:
        return best, bound
    nodes = nodes_within(search.problem.program_effort, NODES)
    proof = least_load(
        model, below=best.rank[0], nodes=nodes, extra=lambda program, runs: add_order(program, runs, flow)
    )
    if proof.home is not None and model.legal(proof.home[None])[0]:
        best = min(best, _answer(search, proof.home), key=Answer.by_rank)
    if proof.bound >= best.rank[0] * (1 - ROUNDING):
        return best, best.rank[0]
    return best, max(bound, proof.bound * (1 - ROUNDING))


def _answer(search: Search, home: Ints) -> Answer:
    """An assignment of units as runs, in an order in which values flow."""
    quotient: nx.DiGraph[int] = nx.DiGraph()
    quotient.add_nodes_from(np.unique(home).tolist())
    quotient.add_edges_from((first, second) for first, second in home[search.units.before].tolist() if first != second)
    order = nx.lexicographical_topological_sort(quotient)
    runs = tuple((device, tuple(np.flatnonzero(home == device).tolist())) for device in order)
    return Answer.of(search, Pipeline(runs, math.inf))


def _between(search: Search, best: Answer, bound: float) -> tuple[Answer | None, float]:
    """An answer of all orders over all ideals, where devices know the one before and the one after them; a bound."""
    linked = between_devices(search)
    if linked is None or not search.problem.time_budget:
        return None, bound
    found, proven = smallest(linked, bound, best.rank[0] * BETTER, search.problem.time_budget)
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
