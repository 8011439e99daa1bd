"""Convex sets for one sample as soon as possible: the best pipeline, then moves; an integer program proves few nodes.

A device runs its nodes one by one, so two sets may need values of each other.
"""

from __future__ import annotations

import itertools

import attrs

from fxpasses.errors import PlacementError
from fxpasses.partitioners.solvers.convex.loads import among_pipelines, solve_convex
from fxpasses.partitioners.solvers.convex.sets import ROWS, ConvexSets
from fxpasses.partitioners.solvers.free.solving import refuse
from fxpasses.partitioners.solvers.latency.certifying import bounded, is_small, proven, work_of
from fxpasses.partitioners.solvers.latency.levels import LatencyAnswer, Level
from fxpasses.partitioners.solvers.latency.searching import started
from fxpasses.partitioners.solvers.latency.shrinking import is_large
from fxpasses.partitioners.solvers.latency.solving import FIRST, MUCH, solve_latency, solved
from fxpasses.partitioners.solvers.problem import USUAL_SECONDS, PlacementProblem
from fxpasses.partitioners.solvers.reduced.reaching import Reach
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Ints
from fxpasses.partitioners.solvers.solved import Solved

__all__ = ["solve_convex_latency"]

MOST_BALANCED = 1000
"""Units up to which the sets of the smallest largest load are looked at, too, where there is a pipeline."""
MOST_MOVED = 300
"""Units up to which moves are tried."""
WORK_A_SECOND, LEAST_SECONDS = 300_000, 0.5
"""Nodes of assignments that are scheduled in a second, about; and for how many seconds whatever the budget, unless only
an answer is wanted."""
BATCH = 64
SHARES = 1.0, 0.5, 0.0
"""Of half a second or more, what searches get: with more seconds one may end where no move leads on."""
INNER_EFFORT = 0.5
"""Of the effort, what searches for first answers get."""


def solve_convex_latency(problem: PlacementProblem, tables: CostTables, units: Units) -> Solved:
    """Place a reduced problem whose units each fit some device; its nodes make no cycle.

    Returns:
        The answer, with the devices in the order in which they begin, and when each node starts.

    Raises:
        InfeasibleError: proven that none exists; says by how many bytes and which node.
        PlacementError: none was found, and none was proven not to exist.
    """
    if is_large(tables):
        return _quickest_pipeline(_inner(problem, "pipeline"), tables)
    level = Level(tables, work_of(units, tables), units.unit_of, None)
    program, bound = bounded(problem, level, units)
    sets = ConvexSets(level.model, Reach.of(units.unit_of, tables))
    answers = [_moved(attrs.evolve(problem, time_budget=budget), level, units, sets) for budget in _budgets(problem)]
    answer = min(filter(None, answers), key=lambda each: each.value, default=None)
    if answer is None:
        raise refuse(problem, tables, units, level.model, sets.rows if sets.row_count <= ROWS else None)
    if units.size <= MOST_MOVED and is_small(program) and sets.row_count <= ROWS:
        answer, bound = proven(problem, level, program, answer, bound, sets.rows)
    return solved(answer, units, min(bound, answer.value))


def _budgets(problem: PlacementProblem) -> list[float]:
    """The seconds of each search; all together what is given, where that is much."""
    if problem.has_little_effort or problem.time_budget < USUAL_SECONDS / 2:
        return [problem.time_budget]
    whole = problem.time_budget / (sum(SHARES) if problem.time_budget >= MUCH else 1.0)
    return [share * whole for share in SHARES]


def _inner(problem: PlacementProblem, contiguity: str) -> PlacementProblem:
    """The problem of a search for a first answer."""
    return attrs.evolve(problem, contiguity=contiguity, effort=problem.program_effort * INNER_EFFORT)


def _moved(problem: PlacementProblem, level: Level, units: Units, sets: ConvexSets) -> LatencyAnswer | None:
    """What moves lead to from the best pipeline, or from the sets of the smallest largest load, if there is any."""
    answer = _first(attrs.evolve(_inner(problem, "pipeline"), explain="never"), level, units)
    if answer is None or units.size <= MOST_BALANCED:
        balanced = _by_loads(_inner(problem, "convex"), level.tables, units)
        evenly = [] if balanced is None else started(level, [balanced])
        answer = min(filter(None, (answer, *evenly)), key=lambda each: each.value, default=None)
    if answer is None or units.size > MOST_MOVED:
        return answer
    least = 0.0 if problem.wants_answer_only else LEAST_SECONDS
    return _descended(level, sets, answer, int(WORK_A_SECOND * (least + problem.time_budget)))


def _quickest_pipeline(pipelines: PlacementProblem, tables: CostTables) -> Solved:
    """That of many nodes: what it is bounded by holds for all convex sets."""
    with among_pipelines(tables):
        return solve_latency(pipelines, tables, reduce_problem(pipelines, tables))


def _first(pipelines: PlacementProblem, level: Level, units: Units) -> LatencyAnswer | None:
    """The quickest pipeline as it is scheduled, if there is one; convex sets may exist all the same."""
    try:
        found = solve_latency(pipelines, level.tables, reduce_problem(pipelines, level.tables))
    except PlacementError:
        return None
    return None if found.start is None else level.started(units.homes(found.device_of), found.start)


def _by_loads(problem: PlacementProblem, tables: CostTables, units: Units) -> Ints | None:
    """The convex sets of the smallest largest load, if any are found."""
    loads = attrs.evolve(problem, objective="throughput", time_budget=problem.time_budget / 8, explain="never")
    seconds = FIRST * problem.time_budget
    try:
        device_of, _order, _bound = solve_convex(loads, tables, reduce_problem(loads, tables), seconds)
    except PlacementError:
        return None
    return units.homes(device_of)


def _descended(level: Level, sets: ConvexSets, answer: LatencyAnswer, work: int) -> LatencyAnswer:
    """Take the best of all moves until none is better, or so many nodes were scheduled."""
    while work > 0:
        moves = sets.moves(answer.home, range(level.model.size))
        best = answer
        while work > 0 and (batch := list(itertools.islice(moves, BATCH))):
            work -= len(batch) * len(level.unit_of)
            best = min(best, started(level, batch)[0], key=lambda each: each.value)
        if best.value >= answer.value * (1 - 1e-12):
            break
        answer = best
    return answer
