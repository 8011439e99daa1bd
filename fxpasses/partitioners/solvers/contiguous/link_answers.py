"""Better pipelines with each value counted over the link that it takes: an integer program, or annealing."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np

from fxpasses.partitioners.solvers.annealing.annealer import STEPS_PER_SECOND, Annealer
from fxpasses.partitioners.solvers.annealing.graphs import Plan
from fxpasses.partitioners.solvers.contiguous.dynamic_program import Pipeline
from fxpasses.partitioners.solvers.contiguous.searching import Answer, Search
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING, least_load, program_size
from fxpasses.partitioners.solvers.proofs.ordering import add_order
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["annealed", "proven_small"]

CLOSE = 1e-3
"""Answers that are so near the bound are not annealed."""
ANNEALING = (0.1, 0.2)
"""Annealings, one after the other, as shares of the budget."""
LOADING = 0.2
"""Seconds that it takes to load what is compiled; a budget below that has none."""
HOT, COLD, SQUARINGS = 0.1, 2e-4, 4
"""Temperatures and norm of these."""
MATRIX = 5_000_000
"""Units times pairs of devices up to which there are any."""
SMALL = 400
"""Variables up to which the integer program is asked."""


def annealed(search: Search, best: Answer, bound: float) -> Answer:
    """The best of some annealings, each from the best before it."""
    budget, kinds = search.problem.time_budget, len(search.tables.memory)
    if budget < LOADING or best.rank[0] <= bound * (1 + CLOSE) or search.units.size * kinds**2 > MATRIX:
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


def proven_small(search: Search, best: Answer, bound: float) -> tuple[Answer, float]:
    """What an integer program over units adds, which knows all links: a better answer, a better bound."""
    units, flow = search.units, search.units.before
    if best.rank[0] <= bound or units.size * len(search.tables.memory) > SMALL:
        return best, bound
    model = LoadModel.of(units, search.tables)
    if program_size(model) > SMALL:
        return best, bound
    seconds = search.problem.program_seconds
    proof = least_load(
        model, below=best.rank[0], seconds=seconds, extra=lambda program, runs: add_order(program, runs, flow)
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
