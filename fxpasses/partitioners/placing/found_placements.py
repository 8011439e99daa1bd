"""A placement that keeps every budget, with what the objective makes small and the bound on it."""

from __future__ import annotations

import attrs

from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.device_runs import Runs
from fxpasses.partitioners.placing.objective_values import objective_value
from fxpasses.partitioners.placing.requests import Contiguity, Request

__all__ = ["EQUAL", "Found"]

EQUAL = 1e-9
"""The share by which two sums of the same may differ."""


@attrs.frozen(eq=False)
class Found:
    """An answer that keeps every budget.

    Args:
        runs: The parts in execution order.
        contiguity: What a device may take.
        value: What the objective makes small, as the parts run.
        bound: No placement of this kind can be below it.
    """

    runs: Runs
    contiguity: Contiguity
    value: float
    bound: float

    @classmethod
    def of(cls, figures: GraphFigures, request: Request, contiguity: Contiguity, runs: Runs, bound: float) -> Found:
        """Evaluate parts that keep every budget, beside a bound on all placements of their kind."""
        value = objective_value(figures, request.topology, request.objective, runs, request.training)
        return cls(runs, contiguity, value, min(bound, value))

    @property
    def is_best(self) -> bool:
        """Whether no placement of its kind is better, but for what sums may differ by."""
        return self.value <= self.bound * (1 + EQUAL)

    def as_kind(self, contiguity: Contiguity, bound: float) -> Found:
        """The same as a placement of a kind that has it, too, with a bound on all of that kind."""
        return attrs.evolve(self, contiguity=contiguity, bound=min(bound, self.value))
