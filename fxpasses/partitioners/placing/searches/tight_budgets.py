"""Placements where budgets are tight: what was seen to be over is taken off them, and the search goes again."""

from __future__ import annotations

from collections import Counter

import attrs

from fxpasses.devices import Device
from fxpasses.errors import PlacementError
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.graph_problems import homes_of
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.searches.own_order import OwnOrder
from fxpasses.partitioners.placing.searches.quick_checks import check_until_over
from fxpasses.partitioners.solvers import solve_placement

__all__ = ["along_own_order", "with_less", "with_room_to_spare"]

MAX_ROUNDS = 8
MARGINS = 2000
"""How often smaller budgets are tried at most, times the number of operators."""


def along_own_order(figures: GraphFigures, request: Request, contiguity: Contiguity, bound: float) -> Found | None:
    """The best cut of the graph's own order, or of another one, that keeps the budgets as memory is predicted."""
    problem = request.problem(figures, contiguity, figures.needs)
    for order in OwnOrder.several(figures, problem):
        margin = Counter[str]()
        for _round in range(MAX_ROUNDS):
            cut = order.best(margin)
            if cut is None:
                break
            runs = runs_of(figures.graph_module, cut.home, figures.dependencies)
            seen = check_until_over(figures, request, runs)
            if not seen.over:
                return Found.of(figures, request, contiguity, runs, bound)
            margin.update(seen.over)
    return None


def with_room_to_spare(figures: GraphFigures, request: Request, contiguity: Contiguity, bound: float) -> Found | None:
    """An assignment of few bytes, where nothing else was found: budgets shrink by what was seen to be over.

    Where they have become too small for the solver, they grow again by half of it.
    """
    request = attrs.evolve(request, time_budget=request.time_budget / 4, explain="never")
    problem = attrs.evolve(request, objective="memory").problem(figures, contiguity, figures.needs)
    margin = Counter[str]()
    for round_ in range(min(2 * MAX_ROUNDS, max(1, MARGINS // len(figures.nodes)))):
        smaller = [with_less(device, margin[device.name]) for device in problem.devices]
        try:
            solution = solve_placement(attrs.evolve(problem, devices=smaller, seed=request.seed + round_))
        except PlacementError:
            if not any(margin.values()):
                return None
            margin = Counter({name: size // 2 for name, size in margin.items()})
            continue
        runs = runs_of(figures.graph_module, homes_of(solution), figures.dependencies, solution.schedule)
        seen = check_until_over(figures, request, runs)
        if not seen.over:
            return Found.of(figures, request, contiguity, runs, bound)
        margin.update(seen.over)
    return None


def with_less(device: Device, size: int) -> Device:
    """A device with a budget smaller by some bytes."""
    if device.available_mem_bytes is None:
        return device
    return attrs.evolve(device, available_mem_bytes=max(0, device.available_mem_bytes - size))
