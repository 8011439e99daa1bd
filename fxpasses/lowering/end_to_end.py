"""Prepare, place, split, move, compile: what ``lower()`` does, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.backends import compile_part
from fxpasses.devices import Device, Link, Topology, is_here
from fxpasses.editing.attributes import find_attribute
from fxpasses.effects import analyze_effects
from fxpasses.errors import PlacementError, PlanError
from fxpasses.lowering.lowered_module import LoweredModule, lowered_module
from fxpasses.lowering.lowered_report import copy_rows
from fxpasses.lowering.paper_devices import refuse_to_run_on_paper
from fxpasses.lowering.planning import place
from fxpasses.lowering.preparing import Clock, Pipeline, Progress, pipeline_of, prepare, stateful
from fxpasses.lowering.submodule_names import submodule_names
from fxpasses.lowering.taken_names import refuse_taken_names
from fxpasses.lowering.verification import compare_with_model
from fxpasses.outlining.outline_plan import Policy
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.parameter_loads import ParameterUses
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.placing.names.device_maps import DeviceMap
from fxpasses.partitioners.placing.names.selectors import Selector
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.requests import Contiguity, Replicate
from fxpasses.passes.opening_regions import CloseRegions
from fxpasses.passes.placement import PlaceOnDevices
from fxpasses.passes.splitting import split
from fxpasses.plan import Plan
from fxpasses.report.facts import summarize, with_figures
from fxpasses.report.summary import Summary

__all__ = [
    "lower",
    "lower_with_plan",
]


def lower(
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
    check: bool = False,
    name: str | None = None,
    progress: Progress | None = None,
) -> LoweredModule:
    """Lower a model onto devices.

    Args:
        model: An ``nn.Module``, any ``GraphModule``, an ``ExportedProgram``, or the path of a saved one.
        args: Example inputs; not needed for a program.
        kwargs: Example keyword inputs.
        devices: Where it may run; their memory is kept. May be left out where a device map names torch devices.
        links: Connections between devices; pairs without one use the default.
        objective: ``latency``, ``throughput``, ``memory`` or ``devices``.
        contiguity: ``pipeline``, ``convex`` or ``free``, as
            :func:`~fxpasses.partitioners.by_device.place_by_device` takes it.
        device_map: Which module runs where, as Hugging Face writes it: module path to the name of a device, a torch
            device, or the number of a GPU. The longest path that covers an operator counts. Nothing is searched then.
        plan: A plan to follow, with its devices unless others are given. Nothing is searched then.
        offload: ``"cpu"`` lets parameters stay in main memory where the devices are too small: some parts then load
            theirs in each run, one part ahead. Nothing changes where the model fits.
        pinned: The device of a module, by its path (``""`` is the model itself), or of an operator, by its key in a
            plan.
        forbidden: Devices that a module must not be on.
        colocate: Groups of modules that share a device.
        time_budget: About how many seconds the search may take.
        seed: For what the search draws.
        replicate: Whether a device computes cheap values again instead of having them sent: where that is ``cheaper``,
            ``always``, or ``never``; as :func:`fxpasses.place` takes it.
        training: Keep the budgets in training steps, with gradients, what the optimizer keeps and what autograd saves;
            as :func:`fxpasses.place` takes it. A plan brings its own.
        pipeline: The clean-up passes: a text, a manager, or a list of passes; by default those of the plan, else
            :data:`DEFAULT_PIPELINE`.
        dynamic_shapes: Which sizes may change, as ``torch.export.export`` takes them. Costs and budgets are those of
            the example inputs: give the largest that you mean to run.
        strict: Capture by bytecode instead of by running.
        check: Compare the result with the model on the example inputs.
        name: What plans and reports call the model; by default its class.
        progress: Called with the name of each step when it begins.

    Returns:
        One callable module with ``plan`` and ``report``. The model's own tensors are used where they already are on
        the right device; buffers that the model writes to are copied, so the two never disturb each other.

    Raises:
        InputError: no device, two of one name, missing or unfitting inputs; nothing to train; how to search, beside a
            plan or a device map.
        CaptureError: torch cannot export the model.
        PipelineError: the pipeline cannot work.
        PlacementError: the device map names a module or a device that is not there, or misses modules; or a torch
            device is not on this machine.
        InfeasibleError: the model does not fit the devices.
        PlanError: the plan does not fit the model.
    """
    clock = Clock(progress)
    planned = place(
        model,
        args,
        kwargs,
        devices=devices,
        links=links,
        objective=objective,
        contiguity=contiguity,
        device_map=device_map,
        plan=plan,
        offload=offload,
        pinned=pinned,
        forbidden=forbidden,
        colocate=colocate,
        time_budget=time_budget,
        seed=seed,
        replicate=replicate,
        training=training,
        pipeline=pipeline,
        dynamic_shapes=dynamic_shapes,
        strict=strict,
        name=name,
        clock=clock,
    )
    lowered = _build(planned.program, planned.graph_module, planned.assignment, planned.plan, clock, planned.summary)
    if check:
        with clock.step("check"):
            verdict = compare_with_model(model, planned.prepared.captured, lowered, args, kwargs)
        lowered.report = attrs.evolve(lowered.report, check=verdict, steps=tuple(clock.rows))
    return lowered


def lower_with_plan(program: ExportedProgram, plan: Plan, *, progress: Progress | None = None) -> LoweredModule:
    """Replay a plan on a program: nothing is searched.

    Args:
        program: The program the plan was made for, or the same model exported again: it goes through the passes of the
            plan where it does not fit as it is.
        plan: Which operator runs where.
        progress: Called with the name of each step when it begins.

    Raises:
        PlanError: the plan does not fit the program.
        PipelineError: the passes of the plan are not known here.
    """
    clock = Clock(progress)
    fitting, graph_module, assignment = _fitting(program, plan, clock)
    with clock.step("report"):
        summary = summarize(plan, graph_module, assignment, step=TrainingStep.if_any(graph_module, plan.training))
    return _build(fitting, graph_module, assignment, plan, clock, summary)


def _fitting(program: ExportedProgram, plan: Plan, clock: Clock) -> tuple[ExportedProgram, GraphModule, Assignment]:
    """A program, if need be after the passes of a plan, with what the plan says about it."""
    try:
        with clock.step("place"):
            return program, *plan.written(stateful(program))
    except PlanError:
        if not plan.pipeline:
            raise
    prepared = prepare(program, pipeline=pipeline_of(plan), clock=clock)
    with clock.step("place"):
        return prepared.program, *plan.written(prepared.graph_module)


def _build(
    program: ExportedProgram,
    graph_module: GraphModule,
    assignment: Assignment,
    plan: Plan,
    clock: Clock,
    summary: Summary,
) -> LoweredModule:
    """Split, place and describe; the one way from an assignment to a lowered module."""
    device_of, offloaded = plan.device_of, plan.offloaded
    _refuse_absent(assignment, device_of)
    with clock.step("split"):
        loaded = ParameterUses.of(graph_module, assignment, device_of).loaded_tensors(offloaded) if offloaded else ()
        constants = _where_constants_live(graph_module, assignment, device_of, loaded)
        parts = split(graph_module, assignment, names=submodule_names(assignment.order, program), constants=constants)
        CloseRegions()(parts.graph_module)
    with clock.step("move and copy"):
        by_submodule = {name: device_of[str(part)] for part, name in parts.part_names.items()}
        submodules = tuple(name for part, name in parts.part_names.items() if str(part) in offloaded)
        PlaceOnDevices(by_submodule, offloaded=submodules, spare_bytes=_spare(summary, plan))(parts.graph_module)
    refuse_taken_names(parts.graph_module)
    lowered = lowered_module(parts, program, offloads=bool(offloaded), replay=lower_with_plan)
    compiled = {name: device.backend for name, device in by_submodule.items() if device.backend != "eager"}
    if compiled:
        with clock.step("compile"):
            for name, backend in compiled.items():
                compile_part(lowered, name, backend)
    copies = copy_rows(lowered, plan.topology, summary.copies)
    lowered.program = program
    lowered.report = attrs.evolve(summary, copies=copies, steps=tuple(clock.rows))
    figures = {key: plan.predicted.get(key) for key in ("objective_value", "bound", "bound_once")}
    lowered.plan = with_figures(plan, summary, **figures)
    refuse_to_run_on_paper(lowered, by_submodule.values())
    return lowered


def _refuse_absent(assignment: Assignment, device_of: Mapping[str, Device]) -> None:
    for device in dict.fromkeys(device_of[str(part)] for part in assignment.order):
        if not is_here(device.torch_device):
            raise PlacementError(
                f"The device {device.name!r} is the torch device {device.torch_device}, and this machine has none; "
                "place() plans without it, and lower() needs it: give another torch_device, or run where it is."
            )


def _where_constants_live(
    graph_module: GraphModule, assignment: Assignment, device_of: Mapping[str, Device], loaded: Container[int]
) -> Callable[[str, Any, Sequence[str]], Policy]:
    """A tensor that parts on several torch devices use stays one tensor: it is held at the top and copied in each run.

    So tied weights stay tied when they are trained. Parts on one torch device share the tensor itself; constants of the
    program, which nobody can change, are on each device. What offloaded parts load is held at the top, too.
    """
    effects = analyze_effects(graph_module)
    used_on: dict[int, set[str]] = {}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        attribute = find_attribute(graph_module, str(node.target))
        value = attribute.value
        if attribute.kind == "constant" and effects.written_storages.isdisjoint(effects.storages(node)):
            continue
        for user in node.users:
            if user in assignment.partition_of:
                device = device_of[str(assignment.partition_of[user])]
                used_on.setdefault(id(value), set()).add(device.torch_device)

    def policy(_name: str, value: Any, _parts: Sequence[str]) -> Policy:
        is_passed = len(used_on.get(id(value), ())) > 1 or id(value) in loaded
        return "pass_in" if is_passed and isinstance(value, torch.Tensor) else "share"

    return policy


def _spare(summary: Summary, plan: Plan) -> dict[str, float]:
    """What each device has left at its fullest, for copies that start early."""
    used = {part.device for part in plan.parts}
    return {row.name: plan.topology[row.name].memory - row.peak_bytes for row in summary.devices if row.name in used}
