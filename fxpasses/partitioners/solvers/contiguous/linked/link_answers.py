"""Better pipelines with each value counted over the link that it takes: an integer program, or annealing."""

from __future__ import annotations

from fxpasses.partitioners.solvers.annealing.annealer import STEPS_PER_SECOND
from fxpasses.partitioners.solvers.annealing.graphs import Cooling
from fxpasses.partitioners.solvers.contiguous.annealed_pipelines import PipelineAnnealer, answer_of
from fxpasses.partitioners.solvers.contiguous.searching import Answer, Search
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING, least_load, program_size
from fxpasses.partitioners.solvers.proofs.ordering import add_order
from fxpasses.partitioners.solvers.reduced.loads import LoadModel

__all__ = ["annealed", "proven_small"]

CLOSE = 1e-3
"""Answers that are so near the bound are not annealed."""
ANNEALING = ((0.1, 0.3), (0.2, 0.1))
"""Annealings, one after the other, as shares of the budget, and where they begin to cool."""
COLD, SQUARINGS = 2e-4, 4
"""The last temperature and the norm of these."""
SMALL = 400
"""Variables up to which the integer program is asked."""


def annealed(search: Search, best: Answer, bound: float) -> Answer:
    """The best of some annealings, each from the best before it."""
    if best.rank[0] <= bound * (1 + CLOSE) or not PipelineAnnealer.takes(search):
        return best
    annealer = PipelineAnnealer(search)
    for share, hot in ANNEALING:
        cooling = Cooling(share * search.problem.time_budget * STEPS_PER_SECOND, hot, COLD, SQUARINGS)
        best = min(best, annealer.annealed(best, cooling) or best, key=Answer.by_rank)
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
        best = min(best, answer_of(search, proof.home), key=Answer.by_rank)
    if proof.bound >= best.rank[0] * (1 - ROUNDING):
        return best, best.rank[0]
    return best, max(bound, proof.bound * (1 - ROUNDING))
