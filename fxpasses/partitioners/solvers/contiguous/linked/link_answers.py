"""Better pipelines with each value counted over the link that it takes, by annealing."""

from __future__ import annotations

from fxpasses.partitioners.solvers.annealing.annealer import STEPS_PER_SECOND
from fxpasses.partitioners.solvers.annealing.graphs import Cooling
from fxpasses.partitioners.solvers.contiguous.annealed_pipelines import PipelineAnnealer
from fxpasses.partitioners.solvers.contiguous.searching import Answer, Search

__all__ = ["annealed"]

CLOSE = 1e-3
"""Answers that are so near the bound are not annealed."""
ANNEALING = ((0.1, 0.3), (0.2, 0.1))
"""Annealings, one after the other, as shares of the budget, and where they begin to cool."""
COLD, SQUARINGS = 2e-4, 4
"""The last temperature and the norm of these."""


def annealed(search: Search, best: Answer, bound: float) -> Answer:
    """The best of some annealings, each from the best before it."""
    if best.rank[0] <= bound * (1 + CLOSE) or not PipelineAnnealer.takes(search):
        return best
    annealer = PipelineAnnealer(search)
    for share, hot in ANNEALING:
        cooling = Cooling(share * search.problem.time_budget * STEPS_PER_SECOND, hot, COLD, SQUARINGS)
        best = min(best, annealer.annealed(best, cooling) or best, key=Answer.by_rank)
    return best
