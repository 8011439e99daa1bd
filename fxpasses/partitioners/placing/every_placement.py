"""The best free placement of a tiny graph, budgets kept as memory is predicted: all there are, the quickest first.

Every assignment is weighed at once as the solvers weigh it, which takes microseconds each: the largest load, or the
bytes that the fullest device needs at least. Then memory is followed from the smallest on, until one keeps the budgets
and no other can be better. Under another objective all are followed, where these are few enough.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from torch.fx import Node

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.solvers.reduced.loads import LoadModel
from fxpasses.partitioners.solvers.reduced.reducing import reduce_problem
from fxpasses.partitioners.solvers.reduced.tables import tables_of

__all__ = ["best_of_all"]

MOST = 20_000
"""Assignments up to which all are looked at."""
ALL = 2
"""How many times as many may be followed if these are all there are."""


def best_of_all(figures: GraphFigures, request: Request, trials: int, bound: float) -> Found | None:
    """The best free placement that was seen to keep the budgets; None where there are too many to look at.

    Args:
        figures: The measured graph.
        request: What the caller asks for.
        trials: How many placements may be followed.
        bound: No free placement is below it.
    """
    problem = request.problem(figures, "free", figures.needs)
    tables = tables_of(problem)
    units = reduce_problem(problem, tables)
    if len(problem.devices) ** units.size > MOST:
        return None
    model = LoadModel.of(units, tables, request.objective)
    homes = np.array(list(itertools.product(range(model.devices), repeat=model.size)), dtype=np.int64)
    homes = homes[model.legal(homes)]  # of bytes it counts what is needed in any case
    is_bounded = request.objective in ("throughput", "memory")
    trials *= 1 if is_bounded else ALL
    if not is_bounded and len(homes) > trials:
        return None
    least = model.figures(homes).max(axis=1)
    names = [device.name for device in problem.devices]
    best, value = None, math.inf
    for row in np.argsort(least, kind="stable")[:trials].tolist():
        if is_bounded and least[row] >= value:
            break
        placed = zip(tables.nodes, homes[row][units.unit_of].tolist(), strict=True)
        home = {node: names[device] for node, device in placed if isinstance(node, Node)}
        runs = runs_of(figures.graph_module, home, figures.dependencies)
        if check_budgets(figures, request.topology, runs, request.training).over:
            continue
        found = Found.of(figures, request, "free", runs, bound)
        if found.value < value:
            best, value = found, found.value
    return best
