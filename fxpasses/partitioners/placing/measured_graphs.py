"""A graph as placing sees it: what its operators are and use, and what is asked of a placement of them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import attrs
from torch.fx import GraphModule

from fxpasses.devices import Device
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.training_figures import training_figures

__all__ = ["MeasuredGraph"]


@attrs.frozen(eq=False, slots=False)
class MeasuredGraph:
    """A graph that is measured once for all placements of it, whatever the budgets of the devices.

    Args:
        figures: What its operators are and use.
        training: What it is trained with, if it is.
    """

    figures: GraphFigures
    training: Training | None = None
    _step: TrainingStep | None = None

    @classmethod
    def of(
        cls,
        graph_module: GraphModule,
        devices: Iterable[Device],
        training: Training | TrainingStep | None = None,
        *,
        memory: MemoryFacts | None = None,
        sends_state: bool = True,
    ) -> MeasuredGraph:
        """Measure a graph; neither is a training step traced again, nor memory measured again, that is known."""
        figures = GraphFigures.of(graph_module, memory, sends_state=sends_state, devices=devices)
        if isinstance(training, TrainingStep):
            return cls(figures, training.training, training)
        return cls(figures, training)

    def without_unread(self) -> MeasuredGraph:
        """The same for a model whose state is in main memory as far as no operator reads it."""
        return attrs.evolve(self, figures=self.figures.without_unread())

    @cached_property
    def step(self) -> TrainingStep | None:
        """The training step, traced when it is first asked for; None for running the graph."""
        return self._step or TrainingStep.if_any(self.figures.graph_module, self.training)

    @cached_property
    def timed(self) -> GraphFigures:
        """What its operators take, and hold to the end: in a run, or in a step."""
        return self.figures if self.step is None else training_figures(self.figures, self.step)
