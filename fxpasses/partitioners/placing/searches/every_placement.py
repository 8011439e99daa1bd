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
from fxpasses.partitioners.solvers.reduced.reducing import Units
from fxpasses.partitioners.solvers.reduced.tables import CostTables

__all__ = ["best_of_all"]

MOST = 20_000
"""Assignments up to which all are looked at."""
ALL = 2
"""How many times as many may be followed if these are all there are."""


def best_of_all(
    figures: GraphFigures, request: Request, tables: CostTables, units: Units, trials: int, bound: float
) -> tuple[Found | None, bool]:
    """The best free placement that was seen to keep the budgets, and whether all that may be were looked at.

    Each is looked at with its operators in the order of the graph.

    Args:
        figures: The measured graph.
        request: What the caller asks for.
        tables: The costs of the problem of free placements.
        units: That problem, reduced.
        trials: How many placements may be followed.
        bound: No free placement is below it.
    """
    names = [device.name for device in request.topology.devices]
    if units.size > MOST or len(names) ** units.size > MOST:
        return None, False
    model = LoadModel.of(units, tables, request.objective)
    homes = np.array(list(itertools.product(range(model.devices), repeat=model.size)), dtype=np.int64)
    homes = homes[model.legal(homes)]  # of bytes it counts what is needed in any case
    is_bounded = request.objective in ("throughput", "memory")
    if not is_bounded and len(homes) > trials * ALL:
        return None, False
    least = model.figures(homes).max(axis=1) if is_bounded else np.zeros(len(homes))
    best, value = None, math.inf
    order = np.argsort(least, kind="stable")
    for row in order[: trials if is_bounded else None].tolist():
        if least[row] >= value:
            return best, True
        placed = zip(tables.nodes, homes[row][units.unit_of].tolist(), strict=True)
        home = {node: names[device] for node, device in placed if isinstance(node, Node)}
        runs = runs_of(figures.graph_module, home, figures.dependencies)
        if check_budgets(figures, request.topology, runs, request.training).over:
            continue
        found = Found.of(figures, request, "free", runs, bound)
        if found.value < value:
            best, value = found, found.value
    return best, not is_bounded or len(order) <= trials
