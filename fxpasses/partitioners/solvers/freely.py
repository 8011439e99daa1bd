"""Solve a reduced problem freely, for each objective: start from a pipeline, search, prove, or say what is missing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import attrs
import numpy as np

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.solvers.bounds import load_bound
from fxpasses.partitioners.solvers.free import FreeSearch
from fxpasses.partitioners.solvers.loads import LoadModel
from fxpasses.partitioners.solvers.pipelines import solve_pipeline
from fxpasses.partitioners.solvers.problem import PlacementProblem
from fxpasses.partitioners.solvers.proving import ROUNDING, Extra, fewest_devices, missing_bytes, program_size
from fxpasses.partitioners.solvers.reducing import Units, reduce_problem
from fxpasses.partitioners.solvers.tables import CostTables, Ints, evaluate

__all__ = ["refuse", "solve_free"]

MAX_SENDING = 30_000_000
"""Entries of the table of sending times up to which there is a search at all; beyond, the pipeline is the answer."""
SMALL = 2000
NODES = 2000
SUBSETS = 12


def solve_free(problem: PlacementProblem, tables: CostTables, units: Units) -> tuple[Ints, tuple[int, ...], float]:
    """Place a reduced problem whose units each fit some device.

    Returns:
        The position of each node's device; the devices that are used; a bound on every assignment.

    Raises:
        InfeasibleError: proven that none exists; says by how many bytes and which node.
        PlacementError: none was found, and none was proven not to exist.
    """
    home, bound = (_fewest if problem.objective == "devices" else _smallest)(problem, tables, units)
    return home[units.unit_of], tuple(np.unique(home).tolist()), bound


def _smallest(problem: PlacementProblem, tables: CostTables, units: Units) -> tuple[Ints, float]:
    """The assignment whose largest figure is the smallest."""
    bound = load_bound(units, tables.memory, problem.objective)
    starts = list(_pipeline(problem, tables, units))
    if len(units.source) * len(tables.memory) ** 2 > MAX_SENDING:
        if starts:
            return starts[0], bound
        raise PlacementError(
            f"No pipeline was found, and {units.size} units on {len(tables.memory)} devices are too many for the "
            "search among free placements; join nodes with `colocate`."
        )
    model = LoadModel.of(units, tables, problem.objective)
    answer = FreeSearch(model, bound, problem.time_budget, problem.seed).run(starts)
    if answer.home is None:
        raise refuse(problem, tables, units, model)
    return answer.home, answer.bound


def _pipeline(problem: PlacementProblem, tables: CostTables, units: Units) -> Iterator[Ints]:
    """The best pipeline, if there is one."""
    similar = attrs.evolve(problem, contiguity="pipeline", time_budget=min(problem.time_budget / 4, 2.0))
    try:
        device_of, _order, _bound = solve_pipeline(similar, tables, reduce_problem(similar, tables))
    except PlacementError:
        return  # a free placement may exist all the same
    home = np.zeros(units.size, dtype=np.int64)
    home[units.unit_of] = device_of
    yield home


def _fewest(problem: PlacementProblem, tables: CostTables, units: Units) -> tuple[Ints, float]:
    """The fewest devices that hold everything, and on them the smallest largest load."""
    model = LoadModel.of(units, tables, "devices")
    bound = _fewest_by_memory(model)
    if program_size(model) <= SMALL:
        proof = fewest_devices(model, nodes=NODES)
        bound = max(bound, int(proof.bound)) if math.isfinite(proof.bound) else bound
    for count in range(bound, model.devices + 1):
        for chosen in _subsets(model, count):
            banned = model.banned | ~np.isin(np.arange(model.devices), chosen)
            if banned.all(axis=1).any():
                continue
            answer = FreeSearch(attrs.evolve(model, banned=banned), 0.0, problem.time_budget, problem.seed).run([])
            if answer.home is not None:
                return answer.home, float(bound)
    raise refuse(problem, tables, units, model)


def _fewest_by_memory(model: LoadModel) -> int:
    total = float(model.kept.sum() + model.shared.sum())
    enough = np.cumsum(np.sort(model.memory)[::-1]) >= total
    return int(np.argmax(enough)) + 1 if enough.any() else model.devices


def _subsets(model: LoadModel, count: int) -> list[tuple[int, ...]]:
    """Some sets of so many devices, those of the most memory first, then those that are the fastest."""
    speed = model.weight.sum(axis=0)
    by_memory = sorted(range(model.devices), key=lambda device: (-model.memory[device], speed[device], device))
    chosen = itertools.islice(itertools.combinations(by_memory, count), SUBSETS)
    return list(chosen)


def refuse(
    problem: PlacementProblem, tables: CostTables, units: Units, model: LoadModel, extra: Extra = None
) -> PlacementError:
    """Why there is no answer: proven with the missing bytes, or not found."""
    more = (
        "No placement that keeps every budget was found, and the search did not get far enough to prove that none "
        f"exists; raise time_budget (it is {problem.time_budget:g} s) or the memory of a device."
    )
    if program_size(model) > SMALL:
        return PlacementError(more)
    proof = missing_bytes(model, nodes=NODES, extra=extra)
    if proof.home is None:
        return PlacementError(more)
    device_of = proof.home[units.unit_of]
    over = evaluate(tables, device_of).kept - tables.memory
    missing, worst = int(over.max()), int(np.argmax(over))
    if missing <= 0 or proof.bound <= missing * (1 - 1e3 * ROUNDING):
        return PlacementError(more)
    own = np.flatnonzero(device_of == worst)
    first = own[int(np.argmax(np.cumsum(tables.kept[own]) > tables.memory[worst]))]
    return InfeasibleError(
        f"No placement keeps every budget: the one that comes nearest needs {missing} bytes more on "
        f"{problem.devices[worst].name!r}, where {tables.nodes[first]!r} is the first node that does not fit.",
        missing_bytes=missing,
    )
