"""What a training step of one graph takes and holds, wherever its operators are: traced once, asked often."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import Device
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.graph_figures import FORWARD_AND_BACKWARD, value_bytes
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.node_costs import seconds_of
from fxpasses.partitioners.costs.training.backward_needs import BackwardNeeds
from fxpasses.partitioners.costs.training.backward_orders import Orders, keeps_order, needs_in_order
from fxpasses.partitioners.costs.training.backward_traces import trace_backward
from fxpasses.partitioners.costs.training.training_course import Training, TrainingCourse
from fxpasses.partitioners.costs.training.training_memory import follow_training

__all__ = ["TrainingStep"]


@attrs.frozen(eq=False)
class TrainingStep:
    """A training step of a graph: what the optimizer keeps, and what autograd does."""

    training: Training
    needs: BackwardNeeds
    _in_order: Orders = attrs.field(factory=dict, repr=False)

    @classmethod
    def of(cls, graph_module: GraphModule, training: Training) -> TrainingStep:
        """Trace the backward of a graph.

        Raises:
            PlacementError: an operator cannot run without data.
        """
        return cls(training, trace_backward(graph_module))

    @classmethod
    def if_any(cls, graph_module: GraphModule, training: Training | None) -> TrainingStep | None:
        """The same where there is training."""
        return None if training is None else cls.of(graph_module, training)

    @property
    def trains(self) -> bool:
        """Whether some parameter gets a gradient."""
        return bool(self.needs.trained)

    @property
    def orders_traced(self) -> int:
        """In how many other orders of the graph its backward was looked at."""
        return len(self._in_order)

    def keeps_order(self, assignment: Assignment) -> bool:
        """Whether parts run the backward so that it does what it does in the graph's own order."""
        return keeps_order(assignment, self.needs)

    def seconds(self, node: Node, device: Device) -> float:
        """Seconds of the forward and the backward of a node."""
        return seconds_of(node, device) * (FORWARD_AND_BACKWARD if node in self.needs.differentiable else 1)

    def backward_share(self, node: Node) -> int:
        """How often the work of its forward the backward of a node is."""
        return FORWARD_AND_BACKWARD - 1 if node in self.needs.differentiable else 0

    def returned(self, node: Node) -> int:
        """Bytes of the gradient of a node's value, which goes the other way."""
        return value_bytes(node) if node in self.needs.differentiable else 0

    def course(
        self,
        graph_module: GraphModule,
        assignment: Assignment,
        device_of: Mapping[str, Device],
        facts: MemoryFacts | None = None,
        *,
        in_order: bool = True,
    ) -> TrainingCourse:
        """What is on each device over the step.

        Args:
            graph_module: The graph.
            assignment: Which node is in which part.
            device_of: The device of each part.
            facts: Those of the graph, if it is measured already.
            in_order: Whether the backward is traced where the parts run it in another order than the graph's own. It
                takes longer than all else, and seldom makes a difference of more than some gradients.
        """
        needs = self.needs
        if in_order:
            needs = needs_in_order(graph_module, assignment, needs, self._in_order)
        facts = facts or MemoryFacts.of(graph_module)
        return follow_training(facts, assignment, device_of, self.training, needs)
