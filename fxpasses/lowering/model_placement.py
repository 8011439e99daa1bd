"""Find out where a captured model runs: by search or by a device map; with parameters in main memory if allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxpasses.devices import Topology
from fxpasses.errors import InfeasibleError, InputError, PlacementError
from fxpasses.partitioners.by_device import place_measured
from fxpasses.partitioners.by_device_map import place_by_device_map
from fxpasses.partitioners.costs.graph_figures import is_compute
from fxpasses.partitioners.costs.memory import follow_placed
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.training.training_steps import TrainingStep
from fxpasses.partitioners.offloading import OffloadedPlacement, offload_where_too_small, place_with_offloading
from fxpasses.partitioners.placing.device_placements import DevicePlacement
from fxpasses.partitioners.placing.device_reasons import NONE_FOUND, ONE_OPERATOR
from fxpasses.partitioners.placing.measured_graphs import MeasuredGraph
from fxpasses.partitioners.placing.names.device_maps import DeviceMap
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.partitioners.placing.requests import Request
from fxpasses.units import format_bytes

__all__ = ["check_offload", "graph_paths", "module_paths", "propose"]

_HINT = ' Or allow offload="cpu": parameters that find no place then stay in main memory.'
"""It makes a single operator that is too large no smaller, so it is not told there."""

_TRAINING_HINT = " A smaller batch, or an optimizer that keeps less, needs less."


def check_offload(offload: str | None) -> None:
    """Refuse a place for parameters that is not there.

    Raises:
        InputError: it is neither None nor ``"cpu"``.
    """
    if offload not in (None, "cpu"):
        raise InputError(f"Parameters can be offloaded to 'cpu', not to {offload!r}; write offload=\"cpu\".")


def propose(
    memory: MemoryFacts,
    topology: Topology,
    objective: Objective,
    *,
    device_map: DeviceMap | None = None,
    modules: Iterable[str] = (),
    graphs: Iterable[str] = (),
    offload: str | None = None,
    options: Mapping[str, Any] | None = None,
    step: TrainingStep | None = None,
) -> OffloadedPlacement:
    """Propose where each operator runs, and which parts load their parameters.

    Args:
        memory: What the model with its state needs in memory.
        topology: The devices and links.
        objective: What is made small.
        device_map: Which module runs where; nothing is searched then.
        modules: The modules of the model, for the map.
        graphs: Those of them that are graphs which were captured before.
        offload: ``"cpu"`` if parameters may stay there.
        options: What else is asked for: further fields of a :class:`.Request`.
        step: For training.

    Raises:
        PlacementError: the map does not fit the model.
        InfeasibleError: the model does not fit the devices; says so if offloading would help.
    """
    graph_module = memory.graph_module
    if device_map is not None:
        placement = place_by_device_map(
            graph_module, device_map, topology, modules=modules, graphs=graphs, objective=objective
        )
        if offload is None:
            _refuse_too_small(memory, placement, step)
            return OffloadedPlacement(placement, ())
        return offload_where_too_small(MeasuredGraph.of(graph_module, topology.devices, step, memory=memory), placement)
    measured = MeasuredGraph.of(graph_module, topology.devices, step, memory=memory)
    options, hint = dict(options or {}), _HINT if step is None else _TRAINING_HINT + _HINT
    try:
        return OffloadedPlacement(place_measured(measured, Request(topology, objective, **options)), ())
    except InfeasibleError as error:
        if error.missing_bytes is None:  # more memory would not help
            raise
        if offload is None:
            error.message += hint * (error.reason != ONE_OPERATOR)
            raise
    except PlacementError as error:  # none was found, though nothing says that there is none
        if offload is None:
            error.message += hint * (error.reason == NONE_FOUND)
            raise
    options.pop("replicate", None)  # an offloaded placement has none
    return place_with_offloading(measured, topology, objective=objective, options=options)


def _refuse_too_small(memory: MemoryFacts, placement: DevicePlacement, step: TrainingStep | None) -> None:
    more = 'or allow offload="cpu"' if step is None else 'train with a smaller batch, or allow offload="cpu"'
    for name, split in _held(memory, placement, step).items():
        budget, peak = placement.topology[name].memory, sum(split.values())
        if peak > budget:
            kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in split.items() if size)
            raise InfeasibleError(
                f"The device map puts {format_bytes(peak)} on {name} ({kinds}), which has {format_bytes(budget)}: "
                f"{format_bytes(peak - budget)} are missing; give some of its modules to another device, {more}.",
                missing_bytes=int(peak - budget),
                reason=f"the device map does not fit {name}",
            )


def _held(memory: MemoryFacts, placement: DevicePlacement, step: TrainingStep | None) -> dict[str, dict[str, int]]:
    """What each device holds at its fullest, by kind."""
    if step is not None:
        steps = step.course(memory.graph_module, placement.assignment, placement.device_of, memory)
        return {name: steps.split(name) for name in steps.held}
    course = follow_placed(memory, placement.assignment, placement.device_of)
    held = {name: course.memory(name) for name in course.held}
    return {name: {"parameters": each.parameters, "activations": each.activations} for name, each in held.items()}


def module_paths(model: Any, program: ExportedProgram) -> dict[str, None]:
    """The modules of a model, those included that leave no operator behind."""
    names = [entry.fqn.partition("@")[0] for entry in program.module_call_graph]
    if isinstance(model, torch.nn.Module):
        names += [name for name, _ in model.named_modules()]
    return dict.fromkeys(names)


def graph_paths(model: Any) -> list[str]:
    """The graphs nested in a model that compute something; ``torch.export`` gives their operators no path of theirs."""
    modules = model.named_modules() if isinstance(model, torch.nn.Module) else ()
    return [
        name
        for name, module in modules
        if name and isinstance(module, GraphModule) and any(map(is_compute, module.graph.nodes))
    ]
