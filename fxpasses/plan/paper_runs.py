"""Run a plan on paper: when each part of it works, what is sent and loaded, what each device holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch.fx import GraphModule

from fxpasses.devices import Topology
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.parameter_loads import ParameterUses
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.plan.parts import PartPlan

if TYPE_CHECKING:
    from fxpasses.simulation import Detail, Overlap, Simulation

__all__ = ["run_on_paper"]


def run_on_paper(
    graph_module: GraphModule,
    assignment: Assignment,
    topology: Topology,
    parts: Sequence[PartPlan],
    *,
    step: TrainingStep | None,
    samples: int,
    overlap: Overlap | None,
    detail: Detail,
) -> Simulation:
    """Simulate the parts of a plan on its devices.

    Args:
        graph_module: The graph that runs, replicas included.
        assignment: What the parts are in it.
        topology: The devices and links.
        parts: The parts of the plan: their devices, and whether they load their parameters.
        step: The training step of the graph; None for running it only.
        samples: How many samples go through.
        overlap: What goes on at the same time.
        detail: Whether a span is a part or an operator.
    """
    from fxpasses.simulation import simulate

    device_of = {part.name: topology[part.device] for part in parts}
    offloaded = tuple(part.name for part in parts if part.offload is not None)
    uses = ParameterUses.of(graph_module, assignment, device_of, step=step)
    return simulate(
        graph_module,
        assignment,
        device_of,
        topology,
        samples=samples,
        overlap=overlap,
        detail=detail,
        course=uses.course_with(offloaded),
        loads=uses.loads(offloaded),
        step=step,
    )
