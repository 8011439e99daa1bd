"""What solvers answer to a problem, and what is seen when the memory of the answer is followed."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from fxpasses.errors import InfeasibleError, PlacementError
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import Seen
from fxpasses.partitioners.placing.device_runs import Runs, runs_of
from fxpasses.partitioners.placing.graph_problems import homes_of
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches.quick_checks import check_until_over
from fxpasses.partitioners.solvers import PlacementProblem, PlacementSolution

__all__ = ["Checked", "Solver", "answer_if_any", "answer_to"]

Solver = Callable[[PlacementProblem], PlacementSolution]


@attrs.frozen(eq=False)
class Checked:
    """What the solvers answered to a request, and what was seen when its memory was followed."""

    request: Request
    solution: PlacementSolution
    runs: Runs
    seen: Seen
    effort: float

    @classmethod
    def of(cls, figures: GraphFigures, request: Request, solution: PlacementSolution, effort: float) -> Checked:
        """Follow the memory of an answer that took some effort."""
        runs = runs_of(figures.graph_module, homes_of(solution), figures.dependencies, solution.schedule)
        return cls(request, solution, runs, check_until_over(figures, request, runs), effort)

    @property
    def fits(self) -> bool:
        """Whether every budget holds."""
        return not self.seen.over


def answer_to(problem: PlacementProblem, solve: Solver) -> PlacementSolution | None:
    """The answer to a problem, or None where none was found and none is proven not to exist."""
    try:
        return solve(problem)
    except InfeasibleError:
        raise
    except PlacementError:
        return None


def answer_if_any(problem: PlacementProblem, solve: Solver) -> PlacementSolution | None:
    """The answer to a problem, if one was found; whether any exists is of no interest."""
    try:
        return solve(problem)
    except PlacementError:
        return None
