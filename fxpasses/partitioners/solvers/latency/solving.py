"""Solve a reduced problem for one sample's latency: pipelines first, search, prove, or say what is missing."""

from __future__ import annotations

import contextlib
import functools
import math

import attrs
import numpy as np

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.solvers.contiguous.ideals.cutting import prefixes
from fxpasses.partitioners.solvers.contiguous.ideals.orders import linear_orders
from fxpasses.partitioners.solvers.contiguous.ideals.states import States
from fxpasses.partitioners.solvers.contiguous.long_graphs import is_long
from fxpasses.partitioners.solvers.contiguous.searching import FEW_STATES, Search
from fxpasses.partitioners.solvers.contiguous.solving import solve_pipeline
from fxpasses.partitioners.solvers.contiguous.tables.dynamic_program import PipelineSearch
from fxpasses.partitioners.solvers.free.searching import FreeSearch
from fxpasses.partitioners.solvers.free.solving import refuse
from fxpasses.partitioners.solvers.latency.certifying import bounded, proven, work_of
from fxpasses.partitioners.solvers.latency.levels import Flow, LatencyAnswer, Level
from fxpasses.partitioners.solvers.latency.list_schedules import in_chunks
from fxpasses.partitioners.solvers.latency.many_nodes import ManyNodes
from fxpasses.partitioners.solvers.latency.searching import LatencySearch
from fxpasses.partitioners.solvers.latency.shrinking import is_large, shrunk, simple_starts, widened
from fxpasses.partitioners.solvers.problem import USUAL_SECONDS, PlacementProblem
from fxpasses.partitioners.solvers.proofs.bounds import load_bound, prices_of
from fxpasses.partitioners.solvers.proofs.ordering import add_order
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import CostTables, Ints
from fxpasses.partitioners.solvers.solved import Solved

__all__ = ["FIRST", "MUCH", "in_turn", "solve_latency", "solved", "units_of_pipelines"]

ORDERS = 3
"""Linear orders that are cut for a start."""
MOST_UNITS = 1000
"""Units up to which a search starts from several pipelines though little effort is wanted; else no long graph does."""
MORE, MUCH_LESS, MUCH = 2.0, 6.0, 10.0
"""How many times the usual seconds are more, what part of them is spent once more, and seconds of which that is a
part."""
FIRST = 3.0
"""How many times the seconds of the budget, counted in steps, each pipeline to start from may take. The effort has no
say: convex sets ask for pipelines with less of it, and must get the same."""
CHUNKED = 6
"""Linear orders that are cut into equal parts."""
MAX_STEPS = 300e6
NEAR = 1.001
"""How many times the bound a list schedule may take and be good enough."""
FAR = 1.5
"""How many times the best list schedule the first schedule of groups may take for a search of groups."""


def solve_latency(problem: PlacementProblem, tables: CostTables, units: Units) -> Solved:
    """Place a reduced problem whose units each fit some device, in a pipeline or freely; its nodes make no cycle.

    Returns:
        The answer, with the devices in the order in which values flow through them, or else in which they begin; and
        when each node starts.

    Raises:
        InfeasibleError: proven that none exists; says by how many bytes and which node.
        PlacementError: none was found, and none was proven not to exist.
    """
    model = work_of(units, tables)
    flow = Flow.of(units, model.devices) if problem.contiguity == "pipeline" else None
    level = Level(tables, model, units.unit_of, flow)
    search = _of_many if is_large(tables) else _node_by_node
    again = _again(problem)
    most = problem.time_budget - (sum(again) if problem.time_budget >= MUCH else 0.0)
    answer, bound = search(attrs.evolve(problem, time_budget=most), level, units)
    for less in again:
        if answer.value <= bound * (1 + 1e-9):
            break
        with contextlib.suppress(PlacementError):  # it was found with more time only
            other, more = search(attrs.evolve(problem, time_budget=less, explain="never"), level, units)
            answer, bound = min(answer, other, key=lambda each: each.value), max(bound, more)
    return solved(answer, units, min(bound, answer.value))


def _again(problem: PlacementProblem) -> tuple[float, ...]:
    """Fewer seconds in which the search is made, too: with more it goes other ways, and mostly finds more."""
    if problem.time_budget < MORE * USUAL_SECONDS or problem.has_little_effort:
        return ()
    shorter = dict.fromkeys((problem.time_budget / MUCH_LESS, USUAL_SECONDS))
    return tuple(less for less in shorter if less >= USUAL_SECONDS / 2)


def _node_by_node(problem: PlacementProblem, level: Level, units: Units) -> tuple[LatencyAnswer, float]:
    """Search all nodes, prove what is small."""
    is_pipeline = level.flow is not None
    few = units.size <= MOST_UNITS if problem.has_little_effort else not is_long(units)
    starts, error = _starts(problem, level.tables, units, every=is_pipeline and few)
    if is_pipeline:
        starts += in_chunks(level, linear_orders(units, CHUNKED, problem.seed))
    elif not starts:
        starts += _free(problem, level.tables, units)
    program, bound = bounded(problem, level, units)
    search = LatencySearch(level, bound, problem.time_budget, problem.seed)
    order = None if level.flow is None else functools.partial(add_order, flow=level.flow.pairs)
    answer, bound = proven(problem, level, program, search.run(starts), bound, order)
    if math.isinf(answer.value):
        raise _why_none(problem, level, units, error)
    return answer, bound


def _of_many(problem: PlacementProblem, level: Level, units: Units) -> tuple[LatencyAnswer, float]:
    """List schedules of all nodes; search groups of nodes where those are far from the bound, or break a budget."""
    nodes = ManyNodes(level)
    bound = max(load_bound(units, level.tables.memory, "throughput"), nodes.longest_path)
    answers = nodes.listed() if level.flow is None else []
    best = min((answer.value for answer in answers), default=math.inf)
    starts: list[Ints] = []
    error = None
    if math.isinf(best):
        starts, error = _starts(problem, level.tables, units, every=False)
    if best > NEAR * bound:
        answers.append(_in_groups(problem, nodes, bound, starts, FAR * best))
    answer = min(answers, key=lambda each: each.value)
    if math.isinf(answer.value):
        raise _why_none(problem, level, units, error)
    return answer, min(bound, answer.value)


def _in_groups(
    problem: PlacementProblem, nodes: ManyNodes, bound: float, starts: list[Ints], most: float
) -> LatencyAnswer:
    """Search groups of nodes, unless their starts take longer than is worth it, then schedule the nodes."""
    groups, joined = shrunk(nodes.level, nodes.topological, starts)
    search = LatencySearch(groups, bound, problem.time_budget, problem.seed)
    starting = [*(joined.homes(start) for start in starts), *simple_starts(groups)]
    return widened(nodes, joined, search.run_from(starting, most))


def _why_none(problem: PlacementProblem, level: Level, units: Units, error: PlacementError | None) -> PlacementError:
    """Why there is no answer: what pipelines lack, if one was asked for."""
    if level.flow is not None and error is not None:
        return error
    return refuse(problem, level.tables, units, level.model)


def solved(answer: LatencyAnswer, units: Units, bound: float) -> Solved:
    """The answer for nodes, with the devices in the order in which they begin."""
    home = answer.home[units.unit_of]
    begin = {device: (float(answer.start[home == device].min()), device) for device in np.unique(home).tolist()}
    devices = sorted(begin, key=begin.__getitem__)
    return Solved(home, tuple(devices), bound, answer.start, answer.value)


def _starts(
    problem: PlacementProblem, tables: CostTables, units: Units, *, every: bool
) -> tuple[list[Ints], PlacementError | None]:
    """Pipelines: that of the smallest sum, of the smallest largest load, of the fewest devices; or why there is none.

    Unless it is asked for every one of them, the first that is found is enough.
    """
    found: list[Ints] = []
    error: PlacementError | None = None
    reduced = units_of_pipelines(problem, tables, units)
    if (cheapest := in_turn(problem, tables, reduced)) is not None:
        found.append(units.homes(cheapest))
    budget = problem.time_budget / 8 if every else 0.0  # the search needs some pipeline, not the best
    similar = attrs.evolve(_as_pipeline(problem), time_budget=budget, effort=0.0)  # what starts needs no proof
    seconds = FIRST * problem.time_budget
    if problem.contiguity == "free":
        similar = attrs.evolve(similar, explain="never")  # a free placement may exist all the same
    for objective in ("throughput", "devices"):
        if found and not every:
            break
        similar = attrs.evolve(similar, objective=objective)
        try:
            device_of, _order, _bound = solve_pipeline(similar, tables, reduced, seconds)
            found.append(units.homes(device_of))
        except PlacementError as failure:
            if problem.contiguity == "pipeline" and isinstance(failure, InfeasibleError):
                raise
            error = failure
            if not found:
                break  # what fits is asked in the same way, whatever counts
    return found, error


def _free(problem: PlacementProblem, tables: CostTables, units: Units) -> list[Ints]:
    """An assignment that keeps the budgets though no pipeline does, if one is found."""
    model, budget = LoadModel.of(units, tables), min(problem.time_budget, 1.0)
    search = FreeSearch(model, 0.0, budget, problem.seed, problem.program_seconds)
    home = search.run([]).home
    return [] if home is None else [home]


def units_of_pipelines(problem: PlacementProblem, tables: CostTables, units: Units) -> Units:
    """The problem reduced for pipelines: the given units if they are that."""
    return units if problem.contiguity == "pipeline" else reduce_problem(_as_pipeline(problem), tables)


def _as_pipeline(problem: PlacementProblem) -> PlacementProblem:
    return attrs.evolve(problem, objective="throughput", contiguity="pipeline")


def in_turn(problem: PlacementProblem, tables: CostTables, units: Units) -> Ints | None:
    """The device of each node in the pipeline whose loads add up to the least, over the cuts of some linear orders.

    Args:
        problem: What to place, where.
        tables: What nodes cost.
        units: The problem, reduced for pipelines.
    """
    similar = _as_pipeline(problem)
    if is_long(units):
        return None
    search = Search.of(similar, tables, units, prices_of(units, tables.memory, "throughput"))
    if States.count(search.classes) > FEW_STATES:
        return None
    words = prefixes(linear_orders(units, ORDERS, problem.seed))
    dynamic = PipelineSearch(units, search.classes, search.states, search.measure(math.inf), in_turn=True)
    found = dynamic.run(words, math.inf, MAX_STEPS)
    return None if found.pipeline is None else search.homes(found.pipeline)
