"""Propose which device runs which node: capability, memory and speed, for any fx graph whose nodes carry values.

The graph becomes a problem for :func:`~fxpasses.partitioners.solve_placement`; its answer is checked against the memory
that is predicted, and comes back as parts that can run one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import attrs
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Link, Topology
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.partitioners.placing.contiguities import best_of_one, best_or_free
from fxpasses.partitioners.placing.device_placements import (
    DevicePlacement,
    described,
    described_alone,
    described_with_replicas,
)
from fxpasses.partitioners.placing.device_reasons import refuse_impossible
from fxpasses.partitioners.placing.device_runs import runs_of
from fxpasses.partitioners.placing.found_placements import Found
from fxpasses.partitioners.placing.measured_graphs import MeasuredGraph
from fxpasses.partitioners.placing.names.selectors import Selector
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.replication.device_replicas import add_device_replicas
from fxpasses.partitioners.placing.requests import Contiguity, Replicate, Request
from fxpasses.partitioners.placing.searches.one_device import is_fastest_everywhere, on_one_device
from fxpasses.partitioners.placing.training_budgets import refuse_too_large_to_step

__all__ = ["place_by_device", "place_measured"]


def place_by_device(
    graph_module: GraphModule,
    devices: Topology | Iterable[Device],
    links: Iterable[Link] = (),
    *,
    objective: Objective = "latency",
    contiguity: Contiguity | None = None,
    supports: Callable[[Device, Node], bool] | None = None,
    pinned: Mapping[Selector, str] | None = None,
    forbidden: Mapping[Selector, Collection[str]] | None = None,
    colocate: Iterable[Iterable[Selector]] = (),
    time_budget: float = 0.5,
    effort: float | None = None,
    seed: int = 0,
    training: Training | None = None,
    replicate: Replicate = "never",
    sends_state: bool = True,
) -> DevicePlacement:
    """Give each operator of a graph a device.

    Args:
        graph_module: A graph whose nodes carry ``val``: exported, traced with values, from ``make_fx`` or dynamo.
        devices: Where it may run.
        links: Connections; pairs without one use the default.
        objective: ``latency`` (one sample from its first operator to its last), ``throughput`` (the busiest device),
            ``memory`` (the fullest device) or ``devices`` (as few as hold it).
        contiguity: ``pipeline`` (each device has one turn), ``convex`` or ``free`` (a device may have several). By
            default a pipeline, and ``free`` where none keeps the budgets and pins; where some device cannot run
            everything, the better of ``pipeline`` and ``free``. For latency by default a device that holds everything
            takes it alone where none is faster: several are quicker only where branches run side by side, and are tried
            if a contiguity is given.
        supports: Whether a device can run a node; by default each device answers for itself.
        pinned: The device of a node, or of all operators of a module, given by its path.
        forbidden: The devices that a node or a module must not be on.
        colocate: Groups of nodes and modules that share a device.
        time_budget: About how many seconds the search may take; more may find better, or prove that nothing is.
        effort: The share of their seconds that integer programs get, from 0 (none is asked) to 1; by default as the
            time budget has it.
        seed: For what the search draws; the same seed gives the same proposal.
        training: Place for training steps: budgets hold with gradients, the optimizer's state and what autograd saves;
            seconds are those of forward and backward.
        replicate: Whether a device computes again what is pure, needs no parameter, and would else be sent there (a
            mask, position ids, a rotary table, a view): ``cheaper`` where that takes fewer seconds and the objective
            gets no worse, ``always`` where it is cheap by itself, so that as few bytes as possible cross, or ``never``.
            ``assignment.replicas`` says what; budgets and figures count it.
        sends_state: Whether a parameter that several devices use (tied weights) lives on one of them, which sends it to
            the others in each run, as ``PlaceOnDevices`` does it; else each has its own.

    Returns:
        The proposal, every budget kept as :func:`~fxpasses.partitioners.costs.memory.predict_memory` predicts it (or
        :func:`~fxpasses.partitioners.predict_training_memory`). It never mutates the graph.

    Raises:
        PlacementError: an option that makes no sense; or no placement was found, and none is proven not to exist.
        InfeasibleError: an op too large for every device, or a model too large for all of them.
        MissingMetadataError: a node has neither a value nor a cost.
    """
    request = Request(
        Topology.of(devices, links),
        objective,
        supports,
        colocate,
        pinned,
        forbidden,
        time_budget,
        seed,
        effort=effort,
        contiguity=contiguity,
        replicate=replicate,
    )
    return place_measured(
        MeasuredGraph.of(graph_module, request.topology.devices, training, sends_state=sends_state), request
    )


def place_measured(measured: MeasuredGraph, request: Request) -> DevicePlacement:
    """Place a graph that is measured already, for devices of the same names, as :func:`place_by_device` does it."""
    topology, supports, contiguity = request.topology, request.supports, request.contiguity
    everywhere = refuse_impossible(measured.figures, topology, supports)
    figures, step = measured.timed, measured.step
    if step is not None:
        refuse_impossible(figures, topology, supports)
        refuse_too_large_to_step(measured.figures, topology, step)
    request = attrs.evolve(request, training=step)
    if not figures.nodes:
        return _nothing(figures, request, contiguity or "pipeline")
    kinds: tuple[Contiguity, ...] = ("pipeline",) if everywhere else ("pipeline", "free")
    alone = on_one_device(figures, request) if contiguity is None and request.objective == "latency" else None
    if alone is not None and everywhere and is_fastest_everywhere(figures, request, alone):
        return described_alone(figures, request, alone)
    if contiguity is None:
        found = best_or_free(figures, request, kinds, alone)
    else:
        found = best_of_one(figures, request, contiguity)
    again = add_device_replicas(figures, request, found, request.replicate)
    return described(figures, request, found) if again is None else described_with_replicas(figures, request, again)


def _nothing(figures: GraphFigures, request: Request, contiguity: Contiguity) -> DevicePlacement:
    """A model that only hands on what it gets has no parts; what is asked for is checked all the same."""
    request.problem(figures, contiguity, figures.needs)
    return described(
        figures, request, Found(runs_of(figures.graph_module, {}, figures.dependencies), contiguity, 0.0, 0.0)
    )
