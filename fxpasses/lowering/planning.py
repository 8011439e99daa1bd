"""Give each operator of a model a device, and say what follows: a plan and its report, before anything moves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.backends import check_backend
from fxpasses.devices import Device, Link, Topology, check_torch_devices
from fxpasses.errors import InputError, PlanError
from fxpasses.lowering.model_placement import check_offload, propose
from fxpasses.lowering.preparing import DEFAULT_PIPELINE, Clock, Pipeline, Prepared, Progress, prepare
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.by_device import Contiguity, DevicePlacement, Objective, place_by_device
from fxpasses.partitioners.by_device_map import devices_of_map
from fxpasses.partitioners.costs.parameter_loads import ParameterUses
from fxpasses.partitioners.costs.training_course import Training
from fxpasses.partitioners.costs.training_steps import TrainingStep
from fxpasses.partitioners.placing.colocation import Selector, as_bans, as_pins
from fxpasses.partitioners.placing.device_maps import DeviceMap
from fxpasses.partitioners.placing.device_replicas import Replicate
from fxpasses.partitioners.placing.replicas import with_replicas
from fxpasses.partitioners.solvers.problem import as_groups
from fxpasses.plan import Plan
from fxpasses.report.facts import summarize, with_figures
from fxpasses.report.summary import Summary
from fxpasses.simulation import Detail, Overlap, Simulation, simulate
from fxpasses.simulation.advice import Placed, what_helps

__all__ = ["Planned", "Wishes", "place"]


@attrs.frozen(eq=False)
class Wishes:
    """What a search is asked for, beside devices; the fields are those of :func:`place`."""

    objective: Objective = "latency"
    contiguity: Contiguity | None = None
    pinned: Mapping[Selector, str] | None = attrs.field(default=None, converter=as_pins)
    forbidden: Mapping[Selector, Collection[str]] | None = attrs.field(default=None, converter=as_bans)
    colocate: Iterable[Iterable[Selector]] = attrs.field(default=(), converter=as_groups)
    time_budget: float = 0.5
    seed: int = 0
    replicate: Replicate = "cheaper"
    training: Training | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What :func:`~fxpasses.partitioners.by_device.place_by_device` takes beside devices and objective."""
        return {field.name: getattr(self, field.name) for field in attrs.fields(Wishes) if field.name != "objective"}

    def search(self, graph_module: GraphModule, topology: Topology, *, time_budget: float) -> DevicePlacement:
        """Place a graph, with another budget of time."""
        options = {**self.options, "time_budget": time_budget}
        return place_by_device(graph_module, topology, objective=self.objective, **options)


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
        wishes: What was asked for; None where a plan or a device map was followed.
        step: The training step of ``graph_module``, where the plan is for training.
    """

    plan: Plan
    prepared: Prepared
    graph_module: GraphModule
    assignment: Assignment
    reasons: Mapping[str, str]
    summary: Summary
    wishes: Wishes | None
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
        found = what_helps(
            self.graph_module,
            self.assignment,
            self.plan.device_of,
            self.plan.topology,
            objective=self.plan.objective,
            replace=None if self.wishes is None else partial(self._placed_again, self.wishes),
            step=self.step,
        )
        return attrs.evolve(self.summary, advice=tuple(found))

    def _placed_again(self, wishes: Wishes, topology: Topology) -> Placed:
        """The same wishes on other devices, without a search."""
        placement = wishes.search(self.prepared.graph_module, topology, time_budget=0.0)
        places = {part: device.name for part, device in placement.device_of.items()}
        return *with_replicas(self.prepared.graph_module, placement.assignment, places), placement.device_of

    def simulate(self, *, samples: int = 1, overlap: Overlap | None = None, detail: Detail = "parts") -> Simulation:
        """Run the plan on paper, a training step where it is for training; see :func:`fxpasses.simulation.simulate`."""
        uses = ParameterUses.of(self.graph_module, self.assignment, self.plan.device_of)
        return simulate(
            self.graph_module,
            self.assignment,
            self.plan.device_of,
            self.plan.topology,
            samples=samples,
            overlap=overlap,
            detail=detail,
            course=uses.course_with(self.plan.offloaded) if self.step is None else None,
            loads=uses.loads(self.plan.offloaded),
            step=self.step,
        )


def place(
    model: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    devices: Iterable[Device] | Topology | None = None,
    links: Iterable[Link] = (),
    objective: Objective = "latency",
    contiguity: Contiguity | None = None,
    device_map: DeviceMap | None = None,
    plan: Plan | None = None,
    offload: str | None = None,
    pinned: Mapping[Selector, str] | None = None,
    forbidden: Mapping[Selector, Collection[str]] | None = None,
    colocate: Iterable[Iterable[Selector]] = (),
    time_budget: float = 0.5,
    seed: int = 0,
    replicate: Replicate = "cheaper",
    training: Training | None = None,
    pipeline: Pipeline | None = None,
    dynamic_shapes: Any = None,
    strict: bool = False,
    name: str | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Planned:
    """Plan where a model runs; no device needs to be there.

    Args:
        model: An ``nn.Module``, any ``GraphModule``, an ``ExportedProgram``, or the path of a saved one.
        args: Example inputs; not needed for a program.
        kwargs: Example keyword inputs.
        devices: Where it may run; their memory is kept. May be left out where a device map names torch devices, and
            where a plan is given.
        links: Connections between devices; pairs without one use the default.
        objective: ``latency``, ``throughput``, ``memory`` or ``devices``.
        contiguity: ``pipeline``, ``convex`` or ``free``, as :func:`~fxpasses.partitioners.by_device.place_by_device`
            takes it.
        device_map: Which module runs where, as Hugging Face writes it. Nothing is searched then.
        plan: A plan to follow. Nothing is searched then.
        offload: ``"cpu"`` lets parameters stay in main memory where the devices are too small.
        pinned: The device of a module, by its path; the longest path that covers an operator counts.
        forbidden: Devices that a module must not be on.
        colocate: Groups of modules that share a device.
        time_budget: About how many seconds the search may take.
        seed: For what the search draws.
        replicate: Whether a device computes cheap values again (a mask, a rotary table, a view) instead of having them
            sent: where that is ``cheaper``, ``always``, or ``never``; as
            :func:`~fxpasses.partitioners.by_device.place_by_device` takes it. A device map, and a placement with
            offloaded parameters, has no replicas.
        training: Plan for training steps: budgets hold with gradients, what the optimizer keeps and what autograd
            saves; seconds are those of forward and backward. A plan says for which training it was made, and is
            followed for that unless another one is given.
        pipeline: The clean-up passes; by default those of the plan, else ``DEFAULT_PIPELINE``.
        dynamic_shapes: Which sizes may change, as ``torch.export.export`` takes them. Costs and budgets are those of
            the example inputs: give the largest that you mean to run.
        strict: Capture by bytecode instead of by running.
        name: What plans and reports call the model; by default its class.
        progress: Called with the name of each step when it begins.
        clock: Where steps are timed, if the caller has more of them.

    Raises:
        InputError: no device, two of one name, missing or unfitting inputs; training with offloaded parameters, or of
            a model that has nothing to train.
        CaptureError: torch cannot export the model.
        PipelineError: the pipeline cannot work.
        PlacementError: an option that makes no sense, or a map that names what is not there.
        InfeasibleError: the model does not fit the devices.
        PlanError: the plan does not fit the model, passes a budget, or puts an operator where it is not supported.
    """
    _check_plan(plan, device_map)
    _check_training(training)
    training = plan.training if plan is not None and training is None else training
    check_offload(offload, training)
    clock = clock or Clock(progress)
    topology = _topology(devices, links, device_map, plan)
    check_torch_devices(topology.devices)
    for device in topology.devices:
        check_backend(device.backend)
    if pipeline is None:
        pipeline = DEFAULT_PIPELINE if plan is None or plan.pipeline is None else plan.pipeline
    prepared = prepare(
        model, args, kwargs, pipeline=pipeline, dynamic_shapes=dynamic_shapes, strict=strict, clock=clock
    )
    with clock.step("place"):
        if plan is not None:
            return _followed(attrs.evolve(plan, training=training), topology, prepared, clock)
        wishes = Wishes(objective, contiguity, pinned, forbidden, colocate, time_budget, seed, replicate, training)
        called = name or _name_of(model)
        return _found(called, topology, prepared, wishes, clock, device_map=device_map, offload=offload)


def _check_plan(plan: Any, device_map: DeviceMap | None) -> None:
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(f"plan is a Plan, not {type(plan).__name__}; of a file write Plan.load('plan.json').")
    if plan is not None and device_map is not None:
        raise InputError("A plan and a device map both say where the model runs; give one of them.")


def _check_training(training: Any) -> None:
    if training is not None and not isinstance(training, Training):
        raise InputError(
            f"training is a Training, not {training!r}; for Adam write Training(optimizer_slots=2), for SGD without "
            "momentum Training(optimizer_slots=0)."
        )


def _step_of(graph_module: GraphModule, training: Training | None) -> TrainingStep | None:
    """The training step of a graph; None where no training is asked for."""
    step = TrainingStep.if_any(graph_module, training)
    if step is not None and not step.trains:
        raise InputError(
            "There is nothing to train: no result of the model depends on a parameter that requires a gradient. Call "
            "requires_grad_() on what is to be trained, without no_grad in its forward; or leave `training` out."
        )
    return step


def _followed(plan: Plan, topology: Topology, prepared: Prepared, clock: Clock) -> Planned:
    """What a plan that is given says about a model; refused where it cannot be kept."""
    followed = attrs.evolve(plan, devices=topology.devices, links=topology.links)
    written = followed.written(prepared.graph_module)
    step = _step_of(written[0], plan.training)
    planned = _planned(followed, prepared, *written, {}, clock, None, step)
    _refuse_unkept(planned)
    return planned


def _found(
    name: str,
    topology: Topology,
    prepared: Prepared,
    wishes: Wishes,
    clock: Clock,
    *,
    device_map: DeviceMap | None,
    offload: str | None,
) -> Planned:
    """What a search finds, or what a device map says."""
    step = _step_of(prepared.graph_module, wishes.training)
    found = propose(
        prepared.graph_module,
        topology,
        wishes.objective,
        device_map=device_map,
        modules=prepared.modules,
        offload=offload,
        options=wishes.options,
        step=step,
    )
    placement = found.placement
    made = Plan.of(
        name,
        wishes.objective,
        topology,
        placement.assignment,
        placement.device_of,
        offloaded=found.offloaded,
        pipeline=prepared.pipeline,
        contiguity=placement.contiguity,
        training=wishes.training,
    )
    asked = wishes if device_map is None and not found.offloaded else None
    places = {part: device.name for part, device in placement.device_of.items()}
    written = with_replicas(prepared.graph_module, placement.assignment, places)
    if written[0] is not prepared.graph_module:  # a copy with replicas
        step = _step_of(written[0], wishes.training)
    return _planned(made, prepared, *written, placement.reasons, clock, asked, step, placement)


def _refuse_unkept(planned: Planned) -> None:
    """Refuse a plan that passes a budget, or puts an operator on a device that cannot run it."""
    devices = planned.plan.devices
    if all(device.available_mem_bytes is None and device.supports is None for device in devices):
        return
    for violation in planned.plan.check(planned.prepared.graph_module):
        if violation.kind in ("budget", "unsupported"):
            raise PlanError(f"The plan for {planned.plan.model} cannot be followed: {violation}")


def _topology(
    devices: Iterable[Device] | Topology | None,
    links: Iterable[Link],
    device_map: DeviceMap | None,
    plan: Plan | None,
) -> Topology:
    if devices is not None:
        return Topology.of(devices, links)
    if plan is not None:
        return plan.topology
    return Topology.of(() if device_map is None else devices_of_map(device_map), links)


def _planned(
    plan: Plan,
    prepared: Prepared,
    graph_module: GraphModule,
    assignment: Assignment,
    reasons: Mapping[str, str],
    clock: Clock,
    wishes: Wishes | None,
    step: TrainingStep | None,
    placement: DevicePlacement | None = None,
) -> Planned:
    value = bound = None
    if placement is not None and not math.isnan(placement.objective_value):
        value, bound = placement.objective_value, placement.bound or None
    summary = summarize(
        attrs.evolve(plan, predicted={"objective_value": value, "bound": bound}),
        graph_module,
        assignment,
        reasons=reasons,
        steps=clock.rows,
        passes=prepared.passes,
        step=step,
    )
    written = with_figures(plan, summary, objective_value=value, bound=bound)
    return Planned(written, prepared, graph_module, assignment, dict(reasons), summary, wishes, step)


def _name_of(model: Any) -> str:
    if isinstance(model, ExportedProgram):
        stack = model.module_call_graph[0].fqn
        return stack or "program"
    return model if isinstance(model, str) else type(model).__name__
