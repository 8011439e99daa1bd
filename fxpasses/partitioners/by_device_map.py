"""Follow a device map: a dict that says for each module, by its path, on which device its operators run.

The form is the one of Hugging Face: ``{"model.layers.0": "left", "": "right"}``. The longest path that covers an
operator counts. Operators are cut into runs in the order that the graph has, so the parts never wait for each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import torch
from networkx.utils import UnionFind
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, Topology, same_torch_device
from fxpasses.errors import InfeasibleError, PlacementError, came_from
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.device_times import predict_times
from fxpasses.partitioners.costs.graph_figures import GraphFigures, is_compute
from fxpasses.partitioners.grouping.keep_together import runs_anywhere
from fxpasses.partitioners.placing.colocation import must_share
from fxpasses.partitioners.placing.device_placements import DevicePlacement
from fxpasses.partitioners.placing.names.device_maps import DeviceMap, covering, holders
from fxpasses.partitioners.placing.names.module_origins import module_of
from fxpasses.partitioners.placing.names.nested_graphs import modules_of_region, paths_by_parameters
from fxpasses.partitioners.placing.names.part_names import PartNames
from fxpasses.partitioners.placing.objective_values import Objective
from fxpasses.wording import did_you_mean, listed

__all__ = ["devices_by_map", "devices_of_map", "place_by_device_map"]


_NAME = re.compile(r"([a-z]+)(\d+)")
"""A torch device without its colon, as a device of a plan is called."""


def devices_of_map(device_map: DeviceMap) -> tuple[Device, ...]:
    """Make a device, without a limit, for each place that a map names.

    >>> [device.torch_device for device in devices_of_map({"first": "cpu", "": 0})]
    ['cpu', 'cuda:0']

    Raises:
        PlacementError: a place is no torch device.
    """
    _refuse_words(device_map)
    places: dict[tuple[str, int], str] = {}  # "cpu" and "cpu:0" are one
    for module, place in device_map.items():
        device = _torch_device(module, place)
        places.setdefault((device.type, device.index or 0), str(device))
    return tuple(Device(place.replace(":", ""), torch_device=place) for place in places.values())


def place_by_device_map(
    graph_module: GraphModule,
    device_map: DeviceMap,
    topology: Topology,
    *,
    modules: Iterable[str] = (),
    graphs: Iterable[str] = (),
    objective: Objective = "latency",
) -> DevicePlacement:
    """Give each operator the device that the map gives its module.

    An operator of a module that only holds other modules of the map, and is in no other way covered, runs where the
    operator before it runs. What must stay together (a tuple and its elements, a storage up to the last write to it)
    goes where its first operator is. A module whose path no operator carries is known by its parameters
    (:mod:`~.placing.names.nested_graphs`). Linear in nodes times the depth of modules.

    Args:
        graph_module: A graph whose nodes carry ``val`` and ``nn_module_stack``.
        device_map: Module paths and devices; a parameter or buffer may be named as well, and stands for its module.
        topology: The devices.
        modules: Module paths that exist although no operator comes from them.
        graphs: Those of them that compute something although no operator carries their path.
        objective: What the proposal says that it is for.

    Raises:
        PlacementError: the map is empty, names a module or a device that is not there, or misses modules; or nothing
            tells the operators of a module that it names.
        InfeasibleError: a device of the map does not support an operator that it gets.
    """
    nodes, devices, moved = _followed(graph_module, device_map, topology, modules, graphs)
    _refuse_unsupported(graph_module, nodes, devices)
    placement = _placement(graph_module, nodes, devices, topology, objective)
    return attrs.evolve(placement, reasons=_reasons(placement, moved))


def devices_by_map(graph_module: GraphModule, device_map: DeviceMap, topology: Topology) -> dict[Node, Device]:
    """The device that a map gives each operator, but for those that run anywhere; what devices support is not asked.

    Raises:
        PlacementError: as :func:`place_by_device_map`.
    """
    nodes, devices, _moved = _followed(graph_module, device_map, topology)
    return {node: device for node, device in zip(nodes, devices, strict=True) if not runs_anywhere(node)}


def _followed(
    graph_module: GraphModule,
    device_map: DeviceMap,
    topology: Topology,
    modules: Iterable[str] = (),
    graphs: Iterable[str] = (),
) -> tuple[list[Node], list[Device], dict[Node, Device]]:
    """The operators and their devices, and those that the map puts elsewhere than what they must share one with."""
    nodes = [node for node in graph_module.graph.nodes if is_compute(node)]
    paths = ["" if node.op == "call_module" and runs_anywhere(node) else module_of(node) for node in nodes]
    known = _known_paths(graph_module, paths, modules)
    places = _places(device_map, topology, known, graph_module)
    paths = paths_by_parameters(nodes, paths, places)
    _refuse_untold(places, paths, graphs)
    chosen = [covering(path, places) for path in paths]
    _refuse_missing(paths, chosen, places)
    _refuse_torn(nodes, chosen, places)
    devices = _filled([None if key is None else places[key] for key in chosen], topology)
    return nodes, devices, _keep_together(GraphFigures.of(graph_module), devices)


def _refuse_words(device_map: Any) -> None:
    """``"auto"`` and the like are words of Hugging Face for a search."""
    if not isinstance(device_map, Mapping):
        raise PlacementError(
            f"A device map is a dict from module paths to devices, not {device_map!r}; leave it out, and the "
            "placement is searched for."
        )
    for module in device_map:
        if not isinstance(module, str):
            raise PlacementError(
                f"The device map names {module!r}, which is no text; a module is named by its path, like 'layers.0'."
            )


def _parsed(place: Any) -> torch.device:
    """A number is a GPU, whether or not this machine has one; torch asks for the accelerator that is here.

    The names of devices that were made of a map (``cuda0``) are read again.
    """
    if isinstance(place, str) and (named := _NAME.fullmatch(place)):
        place = ":".join(named.groups())
    return torch.device(f"cuda:{place}" if type(place) is int else place)


def _torch_device(module: str, place: Any) -> torch.device:
    try:
        return _parsed(place)
    except (RuntimeError, TypeError):
        raise PlacementError(
            f"The device map puts {_quoted(module)} on {place!r}, which is no torch device; write cpu, cuda:0 or 0, or "
            "give devices=[...] and use their names."
        ) from None


def _quoted(module: str) -> str:
    return repr(module) if module else "the whole model ('')"


def _resolve(module: str, place: Any, topology: Topology) -> Device:
    """The device of a place: by its name, or by the torch device that only it has."""
    names = {device.name: device for device in topology.devices}
    if isinstance(place, Device):
        place = place.name
    if isinstance(place, str) and place in names:
        return names[place]
    try:
        wanted = _parsed(place)
    except (RuntimeError, TypeError):
        wanted = None
    found = [
        device for device in topology.devices if wanted is not None and same_torch_device(device.torch_device, wanted)
    ]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{device.name} ({device.torch_device})" for device in topology.devices)
    if found:
        raise PlacementError(
            f"The device map puts {_quoted(module)} on {place!r}, which {len(found)} devices are: {there}; use a name."
        )
    raise PlacementError(f"The device map puts {_quoted(module)} on {place!r}, which is no device; there are {there}.")


def _known_paths(graph_module: GraphModule, paths: Iterable[str], modules: Iterable[str]) -> dict[str, None]:
    tensors = (name.rpartition(".")[0] for name in _tensor_names(graph_module))
    return dict.fromkeys(step for path in (*paths, *modules, *tensors) for step in holders(path))


def _tensor_names(graph_module: GraphModule) -> list[str]:
    parameters = graph_module.named_parameters(remove_duplicate=False)
    buffers = graph_module.named_buffers(remove_duplicate=False)
    return [name for name, _ in (*parameters, *buffers)]


def _places(
    device_map: DeviceMap, topology: Topology, known: Mapping[str, None], graph_module: GraphModule
) -> dict[str, Device]:
    _refuse_words(device_map)
    if not device_map:
        raise PlacementError('The device map is empty; {"": device} puts the whole model on one device.')
    tensors = set(_tensor_names(graph_module))
    given = {module: _resolve(module, place, topology) for module, place in device_map.items()}
    places = {module: device for module, device in given.items() if module in known}
    for module, device in given.items():
        holder = module.rpartition(".")[0]
        if module in known:
            continue
        if module not in tensors:
            raise PlacementError(
                f"The device map names {module!r}, which the model does not have{did_you_mean(module, known)}"
            )
        if places.setdefault(holder, device) is not device:
            raise PlacementError(
                f"The device map puts {module!r} on {device.name}, but {_quoted(holder)} on {places[holder].name}; "
                "a parameter or buffer goes where its module goes: leave one of them out."
            )
    return places


def _refuse_untold(places: Mapping[str, Device], paths: Iterable[str], graphs: Iterable[str]) -> None:
    """A graph that was captured before and has no parameters leaves nothing that its operators are known by."""
    told = {step for path in paths for step in holders(path)}
    for module in graphs:
        if module in places and module not in told:
            raise PlacementError(
                f"The device map names {module!r}, a graph that was captured before: no operator carries its path, and "
                "parameters do not tell which are its own. Nest the model that it was captured from, or take the entry "
                "out; its operators then go with the module around."
            )


def _refuse_torn(nodes: Sequence[Node], chosen: Sequence[str | None], places: Mapping[str, Device]) -> None:
    """A region is one operator: modules that are called in its branches share a device."""
    for node, key in zip(nodes, chosen, strict=True):
        around = holders(module_of(node))
        entries = dict.fromkeys(covering(path, places) for path in modules_of_region(node))
        own = {entry: places[entry] for entry in entries if entry is not None and entry not in around}
        if key in own and len({device.name for device in own.values()}) > 1:
            given = ", ".join(f"{entry!r} on {device.name}" for entry, device in own.items())
            raise PlacementError(
                f"The device map puts {given}, and {node.name} ({node.target}{came_from(node)}) calls all of them in "
                "one operator: give them one device."
            )


def _refuse_missing(paths: Sequence[str], chosen: Sequence[str | None], places: Mapping[str, Device]) -> None:
    """A module that holds others of the map may be left out; one that the map says nothing about may not."""
    containers = {step for key in places for step in holders(key)}
    missing: dict[str, None] = {}
    for path, key in zip(paths, chosen, strict=True):
        if key is None and path not in containers:
            outermost = next(step for step in reversed(holders(path)) if step not in containers)
            missing[outermost] = None
    if missing:
        raise PlacementError(
            f"The device map says nothing about {', '.join(map(repr, missing))}; add them, or add '' for all the rest."
        )


def _filled(given: Sequence[Device | None], topology: Topology) -> list[Device]:
    """Who has no device stays with the one before; at the beginning, with the first one that has."""
    current = next((device for device in given if device is not None), topology.devices[0])
    filled = []
    for device in given:
        current = device or current
        filled.append(current)
    return filled


def _keep_together(figures: GraphFigures, devices: list[Device]) -> dict[Node, Device]:
    """Who must share a device goes where the first of them is; returns who is moved, and where the map puts it."""
    together: UnionFind[Node] = UnionFind(figures.nodes)
    for group in must_share(figures):
        together.union(*group)
    first: dict[Node, Device] = {}
    moved: dict[Node, Device] = {}
    for index, node in enumerate(figures.nodes):
        shared = first.setdefault(together[node], devices[index])
        if shared is not devices[index]:
            moved[node], devices[index] = devices[index], shared
    return moved


def _refuse_unsupported(graph_module: GraphModule, nodes: Sequence[Node], devices: Sequence[Device]) -> None:
    submodules = dict(graph_module.named_modules())
    for node, device in zip(nodes, devices, strict=True):
        if device.supports is not None and not runs_anywhere(node) and not device.runs(submodules, node):
            raise InfeasibleError(
                f"The device map puts {node.name} ({node.target}, of module {module_of(node)!r}) on {device.name}, "
                "which does not support it; give that module another device.",
                node=node,
                reason=f"{device.name} does not support {node.target}",
            )


def _placement(
    graph_module: GraphModule,
    nodes: Sequence[Node],
    devices: Sequence[Device],
    topology: Topology,
    objective: Objective,
) -> DevicePlacement:
    partition_of: dict[Node, str] = {}
    device_of: dict[str, Device] = {}
    fresh = PartNames(device.name for device in topology.devices).fresh
    part, before = "", None
    for node, device in zip(nodes, devices, strict=True):
        if device is not before:
            part, before = fresh(device.name), device
            device_of[part] = device
        partition_of[node] = part
    assignment = Assignment.of(graph_module, partition_of, order=list(device_of))
    seconds, load = predict_times(graph_module, assignment, device_of, topology)
    return DevicePlacement(assignment, device_of, topology, objective, seconds, load, {}, contiguity=None)


def _reasons(placement: DevicePlacement, moved: Mapping[Node, Device]) -> dict[str, str]:
    """Why each part is on its device: the map says so, but not about all of them where some cannot be parted."""
    elsewhere: dict[str, dict[str, list[Node]]] = {}
    for node, device in moved.items():
        part = str(placement.assignment.partition_of[node])
        elsewhere.setdefault(part, {}).setdefault(device.name, []).append(node)
    return {str(part): _reason(elsewhere.get(str(part), {})) for part in placement.device_of}


def _reason(elsewhere: Mapping[str, Sequence[Node]]) -> str:
    said = "the device map says so"
    for name, nodes in elsewhere.items():
        which = listed((node.name for node in nodes), 1)
        said += f"; it puts {which} on {name}, but they must share a device with what is here (a write, a tuple)"
    return said
