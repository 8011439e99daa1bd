"""Pipelines that are found the same whichever solver is asked: looked for once for all searches of a call."""

from __future__ import annotations

from functools import cached_property

import attrs

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.requests import Request
from fxpasses.partitioners.placing.searches.few_ideals import best_pipeline
from fxpasses.partitioners.placing.searches.reduced_graphs import ReducedGraph, tells_lives
from fxpasses.partitioners.placing.searches.refined_pipelines import refined_pipeline
from fxpasses.partitioners.placing.searches.run_tables import BestPipeline
from fxpasses.partitioners.placing.searches.tight_budgets import along_own_order

__all__ = ["KnownCuts"]


@attrs.frozen(eq=False, slots=False)
class KnownCuts:
    """What is known of the pipelines of a graph without a solver; found when somebody asks for it.

    Args:
        figures: The measured graph.
        request: What the caller asks for.
    """

    figures: GraphFigures
    request: Request

    @cached_property
    def best(self) -> BestPipeline | None:
        """What is known of all pipelines, where there are few ideals."""
        return best_pipeline(self.graph)

    @cached_property
    def graph(self) -> ReducedGraph:
        """The problem of its pipelines."""
        return ReducedGraph.of(self.figures, self.request)

    @property
    def needs_lives(self) -> bool:
        """Whether answers of solvers that do not know what is on a device while it runs will mostly pass a budget."""
        return tells_lives(self.request) and self.graph.needs_lives

    def refined(self, best: Found | None, bound: float, seconds: float) -> BestPipeline:
        """What is known, after some seconds, of the pipelines under the value of one, beside a bound on all."""
        return refined_pipeline(self.graph, best, bound, seconds)

    @cached_property
    def along_own_order(self) -> Found | None:
        """The best cut of the graph's own order, or of another one, that keeps the budgets; without a bound."""
        return along_own_order(self.figures, self.request, "pipeline", 0.0)

    @cached_property
    def with_first_users(self) -> KnownCuts:
        """The same with each shared parameter beside its first user."""
        if self.request.state_with_first_user:
            return self
        return KnownCuts(self.figures, attrs.evolve(self.request, state_with_first_user=True))
