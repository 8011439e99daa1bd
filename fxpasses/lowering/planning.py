"""Give each operator of a model a device, and say what follows: a plan and its report, before anything moves."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
from torch.export import ExportedProgram

from fxpasses.backends import check_backend
from fxpasses.devices import Device, Link, Topology, check_torch_devices
from fxpasses.errors import InputError
from fxpasses.lowering.model_placement import check_offload
from fxpasses.lowering.plan_making import followed_plan, found_plan
from fxpasses.lowering.planned_models import Planned
from fxpasses.lowering.preparing import Clock, Pipeline, Progress, pipeline_of, prepare
from fxpasses.lowering.search_options import SearchOptions
from fxpasses.partitioners.by_device_map import devices_of_map
from fxpasses.partitioners.costs.training.training_course import Training
from fxpasses.partitioners.placing.names.device_maps import DeviceMap
from fxpasses.partitioners.placing.names.selectors import Selector
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.requests import Contiguity, Replicate
from fxpasses.plan import Plan
from fxpasses.programs.capturing import check_containers

__all__ = ["place"]


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
        pinned: The device of a module, by its path (``""`` is the model), or of an operator, by its key in a plan; the
            longest that covers an operator counts.
        forbidden: Devices that a module or an operator must not be on.
        colocate: Groups of modules and operators that share a device.
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
            a model that has nothing to train; how to search, beside a plan or a device map.
        CaptureError: torch cannot export the model.
        PipelineError: the pipeline cannot work.
        PlacementError: an option that makes no sense, or a map that names what is not there.
        InfeasibleError: the model does not fit the devices.
        PlanError: the plan does not fit the model, passes a budget, or puts an operator where it is not supported.
    """
    if not isinstance(model, ExportedProgram):
        check_containers(args, kwargs)
    _check_plan(plan, device_map)
    searched = {"pinned": pinned, "forbidden": forbidden, "colocate": colocate, "contiguity": contiguity}
    if device_map is not None:
        _refuse_unheard("device map", searched)
    if plan is not None:
        chosen = {"objective": objective != "latency", "replicate": replicate != "cheaper", "offload": offload}
        _refuse_unheard("plan", {**searched, **chosen})
    _check_training(training)
    training = plan.training if plan is not None and training is None else training
    check_offload(offload)
    if name is not None and not isinstance(name, str):
        raise InputError(f"The name of a model is a text, not {name!r}.")
    clock = clock or Clock(progress)
    topology = _topology(devices, links, device_map, plan)
    check_torch_devices(topology.devices)
    for device in topology.devices:
        check_backend(device.backend)
    passes = pipeline_of(plan) if pipeline is None else pipeline
    prepared = prepare(model, args, kwargs, pipeline=passes, dynamic_shapes=dynamic_shapes, strict=strict, clock=clock)
    with clock.step("place"):
        if plan is not None:
            planned = followed_plan(attrs.evolve(plan, training=training), topology, prepared)
        else:
            options = SearchOptions(
                objective, contiguity, pinned, forbidden, colocate, time_budget, seed, replicate, training
            )
            called = name or _name_of(model)
            planned = found_plan(called, topology, prepared, options, device_map=device_map, offload=offload)
    return attrs.evolve(planned, summary=attrs.evolve(planned.summary, steps=tuple(clock.rows)))


def _check_plan(plan: Any, device_map: DeviceMap | None) -> None:
    if plan is not None and not isinstance(plan, Plan):
        raise InputError(f"plan is a Plan, not {type(plan).__name__}; of a file write Plan.load('plan.json').")
    if plan is not None and device_map is not None:
        raise InputError("A plan and a device map both say where the model runs; give one of them.")


def _refuse_unheard(what: str, given: Mapping[str, Any]) -> None:
    """What only a search would hear."""
    for name, value in given.items():
        if value:
            raise InputError(
                f"A {what} says where the model runs, and nothing is searched; leave {name} out, or the {what}."
            )


def _check_training(training: Any) -> None:
    if training is not None and not isinstance(training, Training):
        raise InputError(
            f"training is a Training, not {training!r}; for Adam write Training(optimizer_slots=2), for SGD without "
            "momentum Training(optimizer_slots=0)."
        )


def _topology(
    devices: Iterable[Device] | Topology | None,
    links: Iterable[Link],
    device_map: DeviceMap | None,
    plan: Plan | None,
) -> Topology:
    if devices is not None:
        return Topology.of(devices, links)
    links = tuple(links)
    if plan is not None:
        if links:
            raise InputError("A plan has its own links; give them together with devices, or leave them out.")
        return plan.topology
    return Topology.of(() if device_map is None else devices_of_map(device_map), links)


def _name_of(model: Any) -> str:
    if isinstance(model, ExportedProgram):
        stack = model.module_call_graph[0].fqn
        return stack or "program"
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else type(model).__name__
