"""What a caller asks for when a graph is placed, checked where it is said, and put to the solvers as a problem."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, get_args

import attrs
import numpy as np
from numpy.typing import NDArray

from fxpasses.devices import Topology
from fxpasses.errors import PlacementError
from fxpasses.partitioners.costs.graph_figures import GraphFigures, Support
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.graph_problems import placement_problem
from fxpasses.partitioners.placing.names.selectors import Selector, as_bans, as_pins
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.solvers import PlacementProblem
from fxpasses.partitioners.solvers.problem import as_groups

__all__ = ["Contiguity", "Replicate", "Request"]

Contiguity = Literal["pipeline", "convex", "free"]

Replicate = Literal["cheaper", "always", "never"]
"""Whether a device computes again what it could have sent: where that takes less time, wherever it is cheap, never."""


def _one_of(known: tuple[str, ...]) -> Any:
    def check(_wish: Any, field: Any, value: str | None) -> None:
        if value not in known and (value is not None or field.default is not None):
            raise PlacementError(f"There is no {field.name} {value!r}; there are {', '.join(known)}.")

    return check


def _seconds(_wish: Any, _field: Any, budget: float) -> None:
    if isinstance(budget, bool) or not isinstance(budget, (int, float)) or not 0 <= budget <= sys.float_info.max:
        raise PlacementError(f"The time budget is a number of seconds, not {budget!r}.")


def _whole(_wish: Any, _field: Any, seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise PlacementError(f"The seed is a whole number from 0 on, not {seed!r}.")


@attrs.frozen(eq=False)
class Request:
    """What a caller asks for; the fields are those of :func:`~fxpasses.partitioners.by_device.place_by_device`.

    Of a brief one an answer is wanted only if it is found soon: nothing more is tried where memory is tight.
    """

    topology: Topology
    objective: Objective = attrs.field(validator=_one_of(get_args(Objective)))
    supports: Support | None = None
    colocate: Iterable[Iterable[Selector]] = attrs.field(default=(), converter=as_groups)
    pinned: Mapping[Selector, str] = attrs.field(default=None, converter=as_pins)
    forbidden: Mapping[Selector, Collection[str]] = attrs.field(default=None, converter=as_bans)
    time_budget: float = attrs.field(default=0.5, validator=_seconds)
    seed: int = attrs.field(default=0, validator=_whole)
    training: TrainingStep | None = None
    effort: float | None = None
    contiguity: Contiguity | None = attrs.field(default=None, validator=_one_of(get_args(Contiguity)))
    replicate: Replicate = attrs.field(default="never", validator=_one_of(get_args(Replicate)))
    state_with_first_user: bool = False
    explain: str = "proven"
    is_brief: bool = False

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
