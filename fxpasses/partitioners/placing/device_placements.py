"""A proposal for a user: which part runs where, what that is predicted to take, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs

from fxpasses.devices import Device, Topology
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.device_times import times_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.budget_checks import check_budgets
from fxpasses.partitioners.placing.device_reasons import alone_reason, reasons_of, replica_reason
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.replication.device_replicas import Replicated
from fxpasses.partitioners.placing.requests import Contiguity, Request
from fxpasses.partitioners.solvers.gaps import gap_above

__all__ = ["DevicePlacement", "described", "described_alone", "described_with_replicas"]


@attrs.frozen(eq=False)
class DevicePlacement:
    """A proposal: which part of the graph runs where.

    Args:
        assignment: Parts in execution order, named after their device (``left``, ``left_1`` for its second run).
        device_of: The device of each part.
        topology: Devices and links.
        objective: What was made small.
        seconds: Predicted seconds of one run, one part after the other, transfers included.
        load: Predicted busy seconds of each device.
        reasons: For each part, why it is where it is and why it ends where it ends.
        contiguity: What a device may take: one run of a pipeline, a convex part, or anything; None where
            nobody searched.
        objective_value: What was made small, as it is predicted: seconds of the busiest device (``throughput``),
            seconds from the first operator to the last (``latency``), bytes of the fullest device (``memory``), or how
            many devices are used (``devices``).
        bound: No placement of this kind can be below it; 0 where nobody asked. Without replicas it is about placements
            that compute each operator once, with replicas about all.
        bound_once: With replicas, the bound on placements that compute each operator once; 0 without.
        saved: For each part that computes something again (``assignment.replicas``), the bytes that cross less in one
            run because of it.
    """

    assignment: Assignment
    device_of: Mapping[str, Device]
    topology: Topology
    objective: Objective
    seconds: float
    load: Mapping[str, float]
    reasons: Mapping[str, str]
    contiguity: Contiguity | None = "pipeline"
    objective_value: float = math.nan
    bound: float = 0.0
    bound_once: float = attrs.field(default=0.0, kw_only=True)
    saved: Mapping[str, int] = attrs.field(factory=dict)

    @property
    def gap(self) -> float:
        """How far above the bound it is at most, as a share of the bound: 0 is proven optimal."""
        return gap_above(self.objective_value, self.bound)

    @property
    def is_optimal(self) -> bool:
        """Whether the bound proves that no placement of this kind is better, up to rounding."""
        return self.gap <= 1e-9


def described(figures: GraphFigures, request: Request, found: Found) -> DevicePlacement:
    """What was found, with times, loads and reasons."""
    return _described(figures, request, found, _whole_bytes(figures, request))


def _described(figures: GraphFigures, request: Request, found: Found, whole: int) -> DevicePlacement:
    """The same where it is known how many bytes one device would need for everything."""
    assignment, topology, value = found.runs.assignment, request.topology, found.value
    device_of = found.runs.devices(topology)
    seconds, load = times_of(figures, assignment, device_of, topology)
    reasons = reasons_of(assignment, device_of, whole, request.objective, found.is_best)
    return DevicePlacement(
        assignment,
        device_of,
        topology,
        request.objective,
        seconds,
        load,
        dict(zip(device_of, reasons, strict=True)),
        found.contiguity,
        value,
        found.bound,
    )


def described_alone(figures: GraphFigures, request: Request, alone: Found) -> DevicePlacement:
    """Nothing is sent then, and nothing waits; that parts on several devices may still win is said in the reason."""
    placement = described(figures, request, alone)
    ((part, device),) = placement.device_of.items()
    others = len(request.topology.devices) - 1
    return attrs.evolve(placement, reasons={part: alone_reason(device, others, placement.bound, placement.is_optimal)})


def described_with_replicas(figures: GraphFigures, request: Request, again: Replicated) -> DevicePlacement:
    """The figures are those of the graph with the replicas written into it; the assignment is of the graph itself.

    One device alone would compute nothing again, so what it needs for everything is that of the graph itself, too.
    """
    found = attrs.evolve(again.found, runs=attrs.evolve(again.found.runs, assignment=again.assignment))
    written = _described(again.figures, request, found, _whole_bytes(figures, request))
    assignment, reasons = again.found.runs.assignment, dict(written.reasons)
    for part, nodes in assignment.replicas.items():
        reasons[str(part)] += f"; {replica_reason(nodes, again.saved.get(str(part), 0))}"
    return attrs.evolve(written, assignment=assignment, reasons=reasons, saved=again.saved, bound_once=again.bound_once)


def _whole_bytes(figures: GraphFigures, request: Request) -> int:
    """What one device would need for everything."""
    if request.training is None:
        return figures.bytes_of(range(len(figures.nodes)))
    homes = dict.fromkeys(figures.nodes, request.topology.devices[0].name)
    runs = runs_of(figures.graph_module, homes, figures.dependencies)
    return check_budgets(figures, request.topology, runs, request.training, always=True).fullest
