"""Check the budgets of one of many placements: what takes long is done for those that may keep them."""

from __future__ import annotations

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import Seen, check_budgets
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.placing.requests import Request

__all__ = ["check_in_order", "check_until_over"]


def check_in_order(figures: GraphFigures, request: Request, runs: Runs, *, always: bool = False) -> Seen:
    """What :func:`.check_budgets` sees, in training with the backward in the graph's own order."""
    return check_budgets(figures, request.topology, runs, request.training, always=always, in_order=False)


def check_until_over(figures: GraphFigures, request: Request, runs: Runs, *, always: bool = False) -> Seen:
    """What :func:`.check_budgets` sees; in training at first with the backward in the graph's own order."""
    if request.training is not None:
        seen = check_in_order(figures, request, runs, always=always)
        if seen.over or request.training.keeps_order(runs.assignment):
            return seen
    return check_budgets(figures, request.topology, runs, request.training, always=always)
