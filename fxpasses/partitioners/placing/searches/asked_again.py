"""Other problems after an answer that passed budgets: they count what was seen, or have smaller budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import attrs
import numpy as np

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import Seen
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.placing.searches.checked_answers import Checked, Solver, answer_if_any
from fxpasses.partitioners.placing.searches.tight_budgets import with_less
from fxpasses.partitioners.placing.searches.time_shares import LITTLE_EFFORT, shares_of_questions
from fxpasses.partitioners.solvers import PlacementSolution

__all__ = ["Again", "solved_again", "with_smaller_budgets", "with_what_is_alive"]

Again = Callable[[Request, Seen], PlacementSolution | None]
"""The answer to another problem after a placement that passed budgets, if there is one."""


def solved_again(figures: GraphFigures, checked: Checked, again: Again) -> Checked | None:
    """The first answer that keeps the budgets to other problems, each in less time; or None."""
    effort = 0.0 if checked.request.objective == "latency" else LITTLE_EFFORT * checked.effort
    first = checked.request.time_budget
    for share in shares_of_questions(first):
        request = attrs.evolve(checked.request, time_budget=share * first, effort=effort, explain="never")
        solution = again(request, checked.seen)
        if solution is None:
            return None
        checked = Checked.of(figures, request, solution, effort)
        if checked.fits:
            return checked
    return None


def with_what_is_alive(figures: GraphFigures, contiguity: Contiguity, solve: Solver) -> Again:
    """Problems that count what was seen to be alive beside each operator."""
    live = figures.needs

    def again(request: Request, seen: Seen) -> PlacementSolution | None:
        nonlocal live
        live = np.maximum(seen.alive, (live + figures.needs) // 2)
        solution = answer_if_any(request.problem(figures, contiguity, live), solve)
        if solution is None:  # that proves nothing: what is alive beside an operator may be less elsewhere
            live = (live + figures.needs) // 2
            solution = answer_if_any(request.problem(figures, contiguity, live), solve)
        return solution

    return again


def with_smaller_budgets(figures: GraphFigures, contiguity: Contiguity, solve: Solver) -> Again:
    """Problems whose budgets are smaller by what was over."""
    margin = Counter[str]()

    def again(request: Request, seen: Seen) -> PlacementSolution | None:
        margin.update(seen.over)
        problem = request.problem(figures, contiguity, figures.needs)
        smaller = [with_less(device, margin[device.name]) for device in problem.devices]
        return answer_if_any(attrs.evolve(problem, devices=smaller), solve)

    return again
