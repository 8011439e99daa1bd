"""Make a plan of a prepared model and of what is asked for: by a search, by a device map, or after another plan."""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
from torch.fx import GraphModule

from fxpasses.devices import Topology
from fxpasses.errors import InputError, PlanError
from fxpasses.lowering.model_placement import propose
from fxpasses.lowering.planned_models import Planned
from fxpasses.lowering.preparing import Prepared
from fxpasses.lowering.search_options import SearchOptions
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.device_placements import DevicePlacement
from fxpasses.partitioners.placing.names.device_maps import DeviceMap
from fxpasses.partitioners.placing.replication.replicas import with_replicas
from fxpasses.plan import Plan
from fxpasses.plan.checking import missing_devices
from fxpasses.plan.contents import contents_of
from fxpasses.plan.keys import stable_keys
from fxpasses.report.facts import summarize, with_figures

__all__ = ["followed_plan", "found_plan"]


def followed_plan(plan: Plan, topology: Topology, prepared: Prepared) -> Planned:
    """What a plan that is given says about a model; refused where it cannot be kept."""
    for violation in missing_devices(plan, [device.name for device in topology.devices], plan.devices):
        raise PlanError(f"The plan for {plan.model} cannot be followed: {violation}")
    followed = attrs.evolve(plan, devices=topology.devices, links=topology.links)
    written = followed.written(prepared.graph_module)
    step = _step_of(written[0], plan.training)
    planned = _planned(followed, prepared, *written, {}, None, step)
    _refuse_unkept(planned)
    return planned


def found_plan(
    name: str,
    topology: Topology,
    prepared: Prepared,
    options: SearchOptions,
    *,
    device_map: DeviceMap | None,
    offload: str | None,
) -> Planned:
    """What a search finds, or what a device map says."""
    step = _step_of(prepared.graph_module, options.training)
    memory = MemoryFacts.of(prepared.graph_module)
    proposed = propose(
        memory,
        topology,
        options.objective,
        device_map=device_map,
        modules=prepared.modules,
        graphs=prepared.graphs,
        offload=offload,
        options=options.placing(prepared.graph_module),
        step=step,
    )
    placement = proposed.placement
    made = Plan.of(
        name,
        options.objective,
        topology,
        placement.assignment,
        placement.device_of,
        offloaded=proposed.offloaded,
        pipeline=prepared.pipeline,
        contiguity=placement.contiguity,
        training=options.training,
    )
    searched = options if device_map is None and not proposed.offloaded else None
    places = {part: device.name for part, device in placement.device_of.items()}
    written = with_replicas(prepared.graph_module, placement.assignment, places)
    if written[0] is not prepared.graph_module:  # a copy with replicas
        step, memory = _step_of(written[0], options.training), MemoryFacts.of(written[0])
    return _planned(made, prepared, *written, placement.reasons, searched, step, placement, memory)


def _refuse_unkept(planned: Planned) -> None:
    """Refuse a plan that passes a budget, or puts an operator on a device that cannot run it."""
    devices = planned.plan.devices
    if all(device.available_mem_bytes is None and device.supports is None for device in devices):
        return
    for violation in planned.plan.check(planned.prepared.graph_module):
        if violation.kind in ("budget", "unsupported"):
            raise PlanError(f"The plan for {planned.plan.model} cannot be followed: {violation}")


def _planned(
    plan: Plan,
    prepared: Prepared,
    graph_module: GraphModule,
    assignment: Assignment,
    reasons: Mapping[str, str],
    options: SearchOptions | None,
    step: TrainingStep | None,
    placement: DevicePlacement | None = None,
    memory: MemoryFacts | None = None,
) -> Planned:
    value, bounds = None, dict[str, float]()
    if placement is not None and not math.isnan(placement.objective_value):
        value = placement.objective_value
        if placement.bound > 0 or value == 0:  # that none is below 0 tells nothing
            bounds["bound"] = placement.bound
        if placement.bound_once > placement.bound:
            bounds["bound_once"] = placement.bound_once
    summary = summarize(
        attrs.evolve(plan, predicted={"objective_value": value, **bounds}),
        graph_module,
        assignment,
        reasons=reasons,
        passes=prepared.passes,
        memory=memory,
        step=step,
    )
    contents = contents_of(plan.parts, stable_keys(prepared.graph_module))
    written = with_figures(
        attrs.evolve(plan, contents=contents), summary, objective_value=summary.objective_value, **bounds
    )
    return Planned(written, prepared, graph_module, assignment, dict(reasons), summary, options, step)


def _step_of(graph_module: GraphModule, training: Training | None) -> TrainingStep | None:
    """The training step of a graph; None where no training is asked for."""
    step = TrainingStep.if_any(graph_module, training)
    if step is not None and not step.trains:
        raise InputError(
            "There is nothing to train: no result of the model depends on a parameter that requires a gradient. Call "
            "requires_grad_() on what is to be trained, without no_grad in its forward; or leave `training` out."
        )
    return step
