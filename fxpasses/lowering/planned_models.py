"""A model with a device for each operator, before anything moves: its plan, its report, its run on paper."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.devices import Topology
from fxpasses.lowering.preparing import Prepared
from fxpasses.lowering.search_options import SearchOptions
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.node_costs import measured_on
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.replication.replicas import with_replicas
from fxpasses.plan import Plan
from fxpasses.plan.paper_runs import run_on_paper
from fxpasses.report.summary import Summary
from fxpasses.simulation import Detail, Overlap, Simulation
from fxpasses.simulation.advice import Placed, Replace, what_helps

__all__ = ["Planned"]


@attrs.frozen(eq=False)
class Planned:
    """A model with a device for each operator; nothing has moved yet.

    Args:
        plan: Which operator runs where, with the predicted figures.
        prepared: The graph that was placed.
        graph_module: The same graph; where devices compute something again, a copy of it with the replicas.
        assignment: The plan as an assignment of ``graph_module``.
        reasons: For each part, why it is where it is.
        summary: What a report says.
        options: What was asked for; None where a plan or a device map was followed.
        step: The training step of ``graph_module``, where the plan is for training.
    """

    plan: Plan
    prepared: Prepared
    graph_module: GraphModule
    assignment: Assignment
    reasons: Mapping[str, str]
    summary: Summary
    options: SearchOptions | None
    step: TrainingStep | None = None

    @property
    def program(self) -> ExportedProgram:
        """The program that the plan fits: after the passes."""
        return self.prepared.program

    def report(self, *, advice: bool = True) -> Summary:
        """The report: devices, copies, the critical path, the bound.

        Args:
            advice: Also try what would help most, which places the graph again a few times.
        """
        if not advice:
            return self.summary
        memory = MemoryFacts.of(self.prepared.graph_module)
        found = what_helps(
            self.graph_module,
            self.assignment,
            self.plan.device_of,
            self.plan.topology,
            objective=self.plan.objective,
            replace=None if self.options is None else self._placing_again(self.options, memory),
            step=self.step,
            offloaded=self.plan.offloaded,
            memory=memory,
        )
        return attrs.evolve(self.summary, advice=tuple(found))

    def _placing_again(self, options: SearchOptions, memory: MemoryFacts) -> Replace:
        """The same options on other devices, without a search; what was measured there is faster as they are."""
        graph_module, step = memory.graph_module, self.step
        if self.graph_module is not graph_module:  # a copy with replicas, whose backward has them, too
            step = TrainingStep.if_any(graph_module, options.training)

        def placed_again(topology: Topology, speeds: Mapping[str, float]) -> Placed:
            with measured_on(graph_module.graph, speeds):
                placement = options.placed_quickly(memory, topology, step)
                places = {part: device.name for part, device in placement.device_of.items()}
                return *with_replicas(graph_module, placement.assignment, places), placement.device_of

        return placed_again

    def simulate(self, *, samples: int = 1, overlap: Overlap | None = None, detail: Detail = "parts") -> Simulation:
        """Run the plan on paper, a training step where it is for training; see :func:`fxpasses.simulation.simulate`."""
        return run_on_paper(
            self.graph_module,
            self.assignment,
            self.plan.topology,
            self.plan.parts,
            step=self.step,
            samples=samples,
            overlap=overlap,
            detail=detail,
        )
