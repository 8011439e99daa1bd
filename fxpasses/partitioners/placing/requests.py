"""What a caller asks for when a graph is placed, checked where it is said, and put to the solvers as a problem."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.devices import Topology
from fxpasses.errors import PlacementError
from fxpasses.partitioners.costs.graph_figures import GraphFigures, Support
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.graph_problems import placement_problem
from fxpasses.partitioners.placing.names.selectors import Selector
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.solvers import PlacementProblem

__all__ = ["Contiguity", "Request"]

Contiguity = Literal["pipeline", "convex", "free"]


def _seconds(_wish: Any, _field: Any, budget: float) -> None:
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 <= budget <= sys.float_info.max:
        raise PlacementError(f"The time budget is a number of seconds, not {budget!r}.")


def _whole(_wish: Any, _field: Any, seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise PlacementError(f"The seed is a whole number from 0 on, not {seed!r}.")


@attrs.frozen(eq=False)
class Request:
    """What a caller asks for; the fields are those of :func:`~fxpasses.partitioners.by_device.place_by_device`."""

    topology: Topology
    objective: Objective
    supports: Support | None = None
    colocate: Sequence[Sequence[Selector]] = ()
    pinned: Mapping[Selector, str] = attrs.field(factory=dict)
    forbidden: Mapping[Selector, Collection[str]] = attrs.field(factory=dict)
    time_budget: float = attrs.field(default=0.5, validator=_seconds)
    seed: int = attrs.field(default=0, validator=_whole)
    training: TrainingStep | None = None
    effort: float | None = None
    state_with_first_user: bool = False
    explain: str = "proven"

    def problem(self, figures: GraphFigures, contiguity: Contiguity, live: NDArray[np.int64]) -> PlacementProblem:
        """The problem that is put to the solvers."""
        return placement_problem(
            figures.graph_module,
            self.topology,
            objective=self.objective,
            contiguity=contiguity,
            supports=self.supports,
            colocate=self.colocate,
            pinned=self.pinned,
            forbidden=self.forbidden,
            time_budget=self.time_budget,
            effort=self.effort,
            seed=self.seed,
            figures=figures,
            live=live,
            state_with_first_user=self.state_with_first_user,
            explain=self.explain,
        )
