"""Pipelines on the fewest devices, and on as few of them the smallest largest load with links as they are.

The search for the fewest counts links at their best, which may mislead it where they differ.
"""

from __future__ import annotations

import itertools

import attrs
import numpy as np

from fxpasses.errors import PlacementError
from fxpasses.partitioners.solvers.contiguous.linked.swapping import links_differ
from fxpasses.partitioners.solvers.contiguous.long_graphs import is_long
from fxpasses.partitioners.solvers.contiguous.solving import solve_pipeline
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.proofs.choosing import distinct_sets
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Ints, evaluate

__all__ = ["solve_fewest"]

MOST_SETS = 20
"""Sets of devices that are tried."""
SETS = 2000
"""How many of them in a second, times units and devices in a set."""


def solve_fewest(problem: PlacementProblem, tables: CostTables, units: Units) -> tuple[Ints, tuple[int, ...], float]:
    """Place a reduced problem whose units each fit some device; one more search for each set of as few devices.

    Returns:
        The position of each node's device; the devices in execution order; a bound on their number.

    Raises:
        InfeasibleError: proven that none exists; says by how many bytes and which node.
        PlacementError: none was found, and the budget was too small to prove that none exists.
    """
    device_of, order, bound = solve_pipeline(problem, tables, units)
    if len(order) == 1 or is_long(units) or not links_differ(tables):
        return device_of, order, bound
    most = int(SETS * (0.5 + problem.time_budget) / (units.size * len(order)))
    sets = list(itertools.islice(distinct_sets(tables, units, len(order)), max(1, min(most, MOST_SETS))))
    similar = attrs.evolve(
        problem, objective="throughput", explain="never", time_budget=problem.time_budget / len(sets)
    )
    best = _Balanced(evaluate(tables, device_of).rank("devices"), device_of, order)
    without_program = attrs.evolve(similar, effort=0.0)
    is_settled = sets == [tuple(sorted(order))] and similar.program_effort > 0  # the search with a program does it all
    for chosen in () if is_settled else sets:
        best = min(best, _on(chosen, without_program, tables, units) or best, key=_rank)
    if similar.program_effort:
        best = min(best, _on(best.order, similar, tables, units) or best, key=_rank)
    return best.device_of, best.order, bound


@attrs.frozen(eq=False)
class _Balanced:
    """A pipeline on the fewest devices."""

    rank: tuple[float, ...]
    device_of: Ints
    order: tuple[int, ...]


def _rank(found: _Balanced) -> tuple[float, ...]:
    return found.rank


def _on(chosen: tuple[int, ...], problem: PlacementProblem, tables: CostTables, units: Units) -> _Balanced | None:
    """A pipeline on some devices of a small largest load, if they have room for one."""
    own_tables, own = _restricted(tables, units, chosen)
    if not np.isfinite(own.seconds).any(axis=1).all():
        return None
    try:
        places, order, _bound = solve_pipeline(problem, own_tables, own)
    except PlacementError:
        return None
    device_of: Ints = np.array(chosen)[places]
    return _Balanced(evaluate(tables, device_of).rank("devices"), device_of, tuple(chosen[place] for place in order))


def _restricted(tables: CostTables, units: Units, chosen: tuple[int, ...]) -> tuple[CostTables, Units]:
    """The same problem, of some devices only."""
    own, between = list(chosen), np.ix_(chosen, chosen)
    few = attrs.evolve(
        tables,
        seconds=tables.seconds[:, own],
        latency=tables.latency[between],
        per_byte=tables.per_byte[between],
        memory=tables.memory[own],
    )
    return few, attrs.evolve(units, seconds=units.seconds[:, own])
