"""The first answer where memory is so tight that no cut of the usual orders keeps the budgets; or why there is none."""

from __future__ import annotations

import attrs
import numpy as np

from fxpasses.errors import PlacementError
from fxpasses.partitioners.solvers.contiguous.ideals.orders import long_orders
from fxpasses.partitioners.solvers.contiguous.ideals.stops import stops_of
from fxpasses.partitioners.solvers.contiguous.improving import improved
from fxpasses.partitioners.solvers.contiguous.long_graphs import is_long
from fxpasses.partitioners.solvers.contiguous.searching import STEPS_A_SECOND, Answer, Search
from fxpasses.partitioners.solvers.contiguous.tables.filled_tables import Pipeline
from fxpasses.partitioners.solvers.contiguous.tight_memory.explaining import lacks, never, none_fits, not_found
from fxpasses.partitioners.solvers.contiguous.tight_memory.filling import Filling, Runs
from fxpasses.partitioners.solvers.contiguous.tight_memory.flowing import can_flow
from fxpasses.partitioners.solvers.contiguous.tight_memory.impossible import Fits
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.proofs.bounds import prices_of
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Ints

__all__ = ["nearest_pipeline", "tight_answer", "why_not"]

STOPS = 500
"""Places to cut one order of a long graph at."""
SECONDS, MORE_SECONDS = 0.1, 4.0
"""How long the search for any answer may take, and how much longer for each second of the budget."""
FEW = 100
"""Ideals of which it is asked at once whether any lead to a pipeline that fits."""
STEPS, MORE_STEPS = 1e10, 2e10
"""The same in multiplications, for a proof that there is none."""


def tight_answer(search: Search) -> Answer | None:
    """Any pipeline that keeps the budgets, made better around its cuts with the devices in the order it has.

    Raises:
        InfeasibleError: proven that none exists, whatever the memories, or where nobody asks for more than that.
    """
    if not is_long(search.units) and can_flow(search.units, search.classes) is False:
        raise none_fits(proven=True) if search.problem.explain == "never" else never()
    given, search = search.units, _short(search)
    filling = Filling(search.units, search.tables.memory, search.problem.seed)
    runs = filling.found(0.0)
    if runs is None and _decided(search)[0] is not False:
        runs = filling.found(SECONDS + MORE_SECONDS * search.problem.time_budget)
    elif runs is None and not is_long(given) and search.problem.explain == "never":
        raise none_fits(proven=True)
    if runs is None:
        return None
    used = [device for device, _members in runs]
    rest = [device for device in range(len(search.tables.memory)) if device not in used]
    in_order = attrs.evolve(search, order=(*used, *rest))
    steps = search.account.within(STEPS_A_SECOND)
    return improved(in_order, Answer.of(in_order, Pipeline(runs, np.inf)), steps)


def _short(search: Search) -> Search:
    """Long graphs are cut at some places along one order."""
    if not is_long(search.units):
        return search
    order = long_orders(search.units, search.problem.seed)[0]
    weight = search.units.kept.astype(np.float64)
    return search.contracted(order, stops_of(order, weight, STOPS, len(search.tables.memory)))


def _decided(search: Search, more: float = 0.0) -> tuple[bool | None, Fits | None, float]:
    """Whether there is a pipeline with so many bytes more, if that is quickly told; and the steps that are left.

    Where only an answer is wanted it is not asked of many ideals: it takes longer than what a proof saves then.
    """
    steps = STEPS + MORE_STEPS * search.problem.time_budget
    if search.problem.wants_answer_only:
        if not np.isfinite(search.units.seconds).any(axis=1).all():
            return False, None, steps
        fits = Fits.of(search.units, search.classes, FEW, is_whole=True)
    else:
        fits = Fits.of(search.units, search.classes) if not is_long(search.units) else None
    decided, spent = (None, 0.0) if fits is None else fits.decide(more, steps)
    return decided, fits, steps - spent


def why_not(search: Search, *, proven: bool = False) -> PlacementError:
    """What to say where no pipeline was found: whether none is proven, and how many bytes the nearest one lacks.

    The latter where the problem asks for it.
    """
    problem, tables = search.problem, search.tables
    decided, fits, steps = _decided(search)
    short = _short(search)
    filling = Filling(short.units, tables.memory, problem.seed)
    runs = filling.anywhere()
    if runs is None:
        return never() if _decided(search, np.inf)[0] is False else not_found(problem.time_budget)
    is_proven = proven or decided is False
    if problem.explain == "never" or (problem.explain == "proven" and not is_proven):
        return none_fits(proven=is_proven)
    runs, least = filling.nearest(runs), 1 if proven else None
    if fits is not None and decided is False:
        runs, least = _nearest(fits, filling, runs, steps)
    return lacks(problem, tables, short.homes(Pipeline(runs, np.inf)), least)


def nearest_pipeline(problem: PlacementProblem, tables: CostTables) -> Ints | None:
    """The device of each node in the pipeline that lacks few bytes, as far as one is found whatever the memories."""
    similar = attrs.evolve(problem, contiguity="pipeline", objective="memory")
    units = reduce_problem(similar, tables)
    if not np.isfinite(units.seconds).any(axis=1).all():
        return None
    short = _short(Search.of(similar, tables, units, prices_of(units, tables.memory, "memory")))
    filling = Filling(short.units, tables.memory, problem.seed)
    runs = filling.anywhere()
    return None if runs is None else short.homes(Pipeline(filling.nearest(runs), np.inf))


def _nearest(fits: Fits, filling: Filling, runs: Runs, steps: float) -> tuple[Runs, int]:
    """The nearest runs and the fewest bytes that are proven to be missing, by bisection."""
    low, high = 0, int(filling.lacking(runs))
    while low + 1 < high:
        middle = (low + high) // 2
        decided, spent = fits.decide(middle, steps)
        steps -= spent
        if decided is False:
            low = middle
            continue
        found = attrs.evolve(filling, memory=filling.memory + middle).beam(300, 8, filling.seed) if decided else None
        runs, high = (runs, middle) if found is None else (found, int(filling.lacking(found)))
    return runs, low + 1
