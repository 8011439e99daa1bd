"""Pipelines of few units and devices as an integer program, which knows all links and how sizes fill devices."""

from __future__ import annotations

from functools import partial

from fxpasses.partitioners.solvers.contiguous.annealed_pipelines import answer_of
from fxpasses.partitioners.solvers.contiguous.searching import Answer, Search
from fxpasses.partitioners.solvers.proofs.assigning import ROUNDING, least_load, program_size
from fxpasses.partitioners.solvers.proofs.ordering import add_order
from fxpasses.partitioners.solvers.reduced.loads import LoadModel

__all__ = ["is_small", "proven_small"]

SMALL, LARGEST = 400, 1500
"""Variables up to which the program is asked: for each second of the budget, and in any case."""


def is_small(search: Search) -> bool:
    """Whether the program is small for the time that there is, and may be asked."""
    if search.problem.program_effort == 0:
        return False
    most = min(SMALL * max(1.0, search.problem.time_budget), LARGEST)
    if search.units.size * len(search.tables.memory) > most:
        return False
    return program_size(LoadModel.of(search.units, search.tables)) <= most


def proven_small(search: Search, best: Answer, bound: float) -> tuple[Answer, float]:
    """What the program adds: a better answer, a better bound."""
    if best.rank[0] <= bound or not is_small(search):
        return best, bound
    model = LoadModel.of(search.units, search.tables)
    alike = [group.devices for group in search.classes] if model.links_alike else []
    order = partial(add_order, flow=search.units.before, alike=alike)
    proof = least_load(model, below=best.rank[0], seconds=search.problem.program_seconds, extra=order)
    if proof.home is not None and model.legal(proof.home[None])[0]:
        best = min(best, answer_of(search, proof.home), key=Answer.by_rank)
    if proof.bound >= best.rank[0] * (1 - ROUNDING):
        return best, best.rank[0]
    return best, max(bound, proof.bound * (1 - ROUNDING))
