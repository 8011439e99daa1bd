"""Solve a reduced problem for one sample's latency: pipelines first, search, prove, or say what is missing."""

from __future__ import annotations

import math

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.solvers.bounds import load_bound, prices_of
from fxpasses.partitioners.solvers.contiguous import PipelineSearch
from fxpasses.partitioners.solvers.cutting import prefixes
from fxpasses.partitioners.solvers.freely import refuse
from fxpasses.partitioners.solvers.latency import LatencyAnswer, LatencySearch
from fxpasses.partitioners.solvers.loads import LoadModel
from fxpasses.partitioners.solvers.orders import linear_orders
from fxpasses.partitioners.solvers.pipelines import solve_pipeline
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.proving import ROUNDING
from fxpasses.partitioners.solvers.proving_latency import LatencyProgram
from fxpasses.partitioners.solvers.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.scheduling import Scheduler
from fxpasses.partitioners.solvers.searching import FEW_STATES, LONG, Search
from fxpasses.partitioners.solvers.solved import Solved
from fxpasses.partitioners.solvers.states import States
from fxpasses.partitioners.solvers.tables import CostTables, Ints

__all__ = ["in_turn", "solve_latency"]

MAX_SENDING = 200_000_000
"""Entries of the table of sending times up to which there is a search."""
SMALL = 400
"""Variables up to which the integer program is asked."""
RELAXED = 20_000
"""Variables up to which the linear relaxation is asked for a bound."""
ORDERS = 3
"""Linear orders that are cut for a start."""
MAX_STEPS = 300e6
VARIABLES_A_SECOND = 80_000
"""How many variables the program takes to its branch-and-bound nodes in a second, times their number."""


def solve_latency(problem: PlacementProblem, tables: CostTables, units: Units) -> Solved:
    """Place a reduced problem whose units each fit some device.

    Returns:
        The answer, with the devices in the order in which they begin, and when each node starts.

    Raises:
        InfeasibleError: proven that none exists; says by how many bytes and which node.
        PlacementError: none was found, or the nodes wait for each other in a circle.
    """
    if tables.seconds.size * len(tables.memory) > MAX_SENDING:
        raise PlacementError(
            f"{len(tables.nodes)} nodes on {len(tables.memory)} devices are too many for objective='latency'; place "
            "them with objective='throughput', or join them first."
        )
    scheduler = Scheduler.of(tables)
    if len(scheduler.topological) < len(tables.nodes):
        stuck = np.setdiff1d(np.arange(len(tables.nodes)), scheduler.topological)
        names = ", ".join(repr(tables.nodes[node]) for node in stuck[:3].tolist())
        raise PlacementError(f"A latency needs nodes that do not wait for each other in a circle; {names} do.")
    model = LoadModel.of(units, tables, "latency")
    is_pipeline = problem.contiguity != "free"
    allowed = Flow.of(units, model.devices).is_acyclic if is_pipeline else _anything
    bound = max(load_bound(units, tables.memory, "throughput"), _path_bound(scheduler, tables))
    starts, error = _pipelines(problem, tables, units)
    if is_pipeline and isinstance(error, InfeasibleError):
        raise error
    flow = Flow.of(units, model.devices).pairs if is_pipeline else None
    program = LatencyProgram(model, scheduler, units.unit_of, flow)
    if problem.time_budget and model.size * model.devices <= RELAXED:
        bound = max(bound, program.relaxed() * (1 - ROUNDING))
    search = LatencySearch(model, scheduler, units.unit_of, allowed, bound, problem.time_budget, problem.seed)
    answer, bound = _proven(problem, search, program, search.run(starts))
    if math.isinf(answer.value):
        raise (error if is_pipeline and error is not None else refuse(problem, tables, units, model))
    return Solved(answer.home[units.unit_of], _devices(answer, units), bound, answer.start, answer.value)


def _anything(homes: Ints) -> NDArray[np.bool_]:
    return np.ones(len(homes), dtype=bool)


def _devices(answer: LatencyAnswer, units: Units) -> tuple[int, ...]:
    """The devices in the order in which they begin."""
    home = answer.home[units.unit_of]
    used = np.unique(home).tolist()
    return tuple(sorted(used, key=lambda device: (float(answer.start[home == device].min()), device)))


@attrs.frozen(eq=False)
class Flow:
    """Which units must not be on later devices than others: pairs (before, after), ``(e, 2)``."""

    pairs: Ints
    devices: int

    @classmethod
    def of(cls, units: Units, devices: int) -> Flow:
        """Take the precedence of the units."""
        pairs = [(before, unit) for unit, needs in enumerate(units.predecessors) for before in needs]
        return cls(np.array(pairs, dtype=np.int64).reshape(-1, 2), devices)

    def is_acyclic(self, homes: Ints) -> NDArray[np.bool_]:
        """Which assignments are pipelines: no device needs a value back from a later one, ``(p,)``."""
        kinds = self.devices
        reach = np.zeros((len(homes), kinds, kinds), dtype=np.float32)
        rows = np.arange(len(homes))[:, None]
        reach[rows, homes[:, self.pairs[:, 0]], homes[:, self.pairs[:, 1]]] = 1
        own = np.arange(kinds)
        reach[:, own, own] = 0
        for _ in range(max(1, math.ceil(math.log2(kinds + 1)))):
            reach = np.minimum(reach + reach @ reach, 1)
        acyclic: NDArray[np.bool_] = reach[:, own, own].sum(axis=1) == 0
        return acyclic


def _path_bound(scheduler: Scheduler, tables: CostTables) -> float:
    """The longest path when each node is on the best device for it and for what follows, budgets left out."""
    count, kinds = tables.seconds.shape
    earliest = np.zeros((count + 1, kinds))
    for node in scheduler.topological.tolist():
        needs = scheduler.before[node][scheduler.before[node] < count]
        there = (earliest[needs][:, :, None] + scheduler.send[needs]).min(axis=1).max(axis=0, initial=0.0)
        earliest[node] = there + tables.seconds[node]
    return float(earliest[:-1].min(axis=1).max(initial=0.0))


def _pipelines(problem: PlacementProblem, tables: CostTables, units: Units) -> tuple[list[Ints], PlacementError | None]:
    """The pipelines of the smallest largest load, of the fewest devices, of the smallest sum; or why there is none."""
    found: list[Ints] = []
    error: PlacementError | None = None
    budget = problem.time_budget / 8
    for objective in ("throughput", "devices"):
        similar = attrs.evolve(problem, objective=objective, contiguity="pipeline", time_budget=budget)
        try:
            device_of, _order, _bound = solve_pipeline(similar, tables, reduce_problem(similar, tables))
        except PlacementError as failure:
            error = failure if error is None else error
            continue
        found.append(np.zeros(units.size, dtype=np.int64))
        found[-1][units.unit_of] = device_of
    if (cheapest := in_turn(problem, tables)) is not None:
        found.append(np.zeros(units.size, dtype=np.int64))
        found[-1][units.unit_of] = cheapest
    return found, error


def in_turn(problem: PlacementProblem, tables: CostTables) -> Ints | None:
    """The device of each node in the pipeline whose loads add up to the least, over the cuts of some linear orders."""
    similar = attrs.evolve(problem, objective="throughput", contiguity="pipeline")
    units = reduce_problem(similar, tables)
    search = Search.of(similar, tables, units, prices_of(units, tables.memory, "throughput"))
    if States.count(search.classes) > FEW_STATES or units.size > LONG:
        return None
    words = prefixes(linear_orders(units, ORDERS, problem.seed))
    dynamic = PipelineSearch(units, search.classes, search.states(), search.measure(math.inf), in_turn=True)
    found = dynamic.run(words, math.inf, MAX_STEPS)
    return None if found.pipeline is None else search.devices(found.pipeline)


def _proven(
    problem: PlacementProblem, search: LatencySearch, program: LatencyProgram, answer: LatencyAnswer
) -> tuple[LatencyAnswer, float]:
    """What the integer program adds when it is small: a better answer, a better bound."""
    bound = search.bound
    if answer.value <= bound * (1 + 1e-9):
        return answer, bound
    if search.model.size * search.model.devices <= SMALL and program.size <= SMALL:
        nodes = int(VARIABLES_A_SECOND * (2 + problem.time_budget / 2) / (1 + program.size))
        home, start, proven = program.solve(answer.value, nodes=nodes)
        if home is not None and start is not None:
            answer = min(answer, search.scheduled(home, start), key=lambda each: each.value)
        if proven >= answer.value * (1 - ROUNDING):
            return answer, answer.value
        bound = max(bound, proven * (1 - ROUNDING))
    return answer, min(bound, answer.value)
