"""Predict how many bytes each device holds at most, by following what is alive while the parts run one after the other.

A storage lives from the node that makes it to the last use of its last alias. What crosses into a part stays until
that part returns, since the caller's arguments hold it; a copy lives on the other device from the first part that
needs it to the last. An input that is on the device already is there all the time. What an operator needs for itself is
there while it runs. What goes into an autocast or grad-mode region stays until the part leaves it, and so do the
parameters that autocast has cast and kept.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, is_given_on
from fxpasses.editing.attributes import find_attribute
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.metadata import value_of
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.device_storages import DeviceStorages, Place
from fxpasses.partitioners.costs.kernel_results import result_bytes
from fxpasses.partitioners.costs.memory_courses import DeviceMemory, Life, MemoryCourse
from fxpasses.partitioners.costs.residence import Residence
from fxpasses.partitioners.costs.workspaces import (
    autocast_around,
    homes_in_memory,
    kept_cast_bytes,
    workspace_bytes,
)
from fxpasses.partitioners.tensor_sizes import bytes_by_place, storage_bytes, tensor_bytes, tensors_in

__all__ = ["follow_memory", "predict_memory"]


def predict_memory(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    effects: EffectAnalysis | None = None,
) -> dict[str, DeviceMemory]:
    """Follow the parts in execution order and add up what is alive on each device.

    Args:
        graph_module: The unsplit graph, its nodes with ``val``.
        assignment: Which node is in which part.
        device_of: The device of each part.
        effects: The effects of the graph, if they are known already.

    Returns:
        For each device by name, in the order in which they first appear.
    """
    course = follow_memory(graph_module, assignment, device_of, effects)
    return {name: course.memory(name) for name in course.held}


def follow_memory(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    effects: EffectAnalysis | None = None,
) -> MemoryCourse:
    """Follow what comes and goes on each device, position by position; the arguments are those of predict_memory."""
    effects = effects or analyze_effects(graph_module)
    home = {node: device_of[str(part)].name for node, part in assignment.partition_of.items()}
    devices = {device.name: device for device in device_of.values()}
    storages = DeviceStorages.of(graph_module, homes_in_memory(graph_module, effects), home)
    residence = Residence.of(assignment, home, effects)
    values, inside = _values(graph_module, storages, residence), _inside(residence, devices)
    _keep_inputs(values, devices, residence.end)
    held = _held(graph_module, effects, storages)
    state = _held(graph_module, effects, storages, parameters=False)
    return MemoryCourse(
        tuple(residence.position),
        {name: sum(held.get(name, {}).values()) for name in devices},
        {name: (*values.get(name, {}).values(), *inside.get(name, ())) for name in devices},
        {name: sum(state.get(name, {}).values()) for name in devices},
        storages,
    )


def _held(
    graph_module: GraphModule,
    effects: EffectAnalysis,
    storages: DeviceStorages,
    *,
    parameters: bool = True,
) -> dict[str, dict[tuple[int, ...], int]]:
    home = storages.device_of
    held: dict[str, dict[tuple[int, ...], int]] = {}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        if not parameters and isinstance(find_attribute(graph_module, str(node.target)).value, torch.nn.Parameter):
            continue
        if tensors := tensors_in(value_of(node)):
            for device in dict.fromkeys(home[user] for user in node.users if user in home):
                sizes = held.setdefault(device, {})
                key = storages.homes[node]
                sizes[key] = max(sizes.get(key, 0), storage_bytes(tensors[0]))
    for node, device in home.items():
        if node.op == "call_module":
            _hold_state(node, effects, held.setdefault(device, {}), parameters)
    return held


def _hold_state(node: Node, effects: EffectAnalysis, sizes: dict[tuple[int, ...], int], parameters: bool) -> None:
    """Count the parameters and buffers of a called module."""
    told = effects.of(node)
    real = effects.real_tensors()
    for storage in dict.fromkeys((*told.reads, *told.writes)):
        for tensor in real.get(storage, ()):
            if parameters or not isinstance(tensor, torch.nn.Parameter):
                sizes[(storage,)] = max(sizes.get((storage,), 0), storage_bytes(tensor))


def _values(graph_module: GraphModule, storages: DeviceStorages, residence: Residence) -> dict[str, dict[Place, Life]]:
    """For each device the life of each storage on it; what is held all the time is none."""
    lives: dict[str, dict[Place, Life]] = {}
    homes, home = storages.homes, storages.device_of
    constants = {storage for node in graph_module.graph.find_nodes(op="get_attr") for storage in homes[node]}
    for node in graph_module.graph.nodes:
        tensors = tensors_in(value_of(node)) if node.op not in ("get_attr", "output") else []
        if not tensors:
            continue
        own, sent = result_bytes(node, homes[node]), bytes_by_place(homes[node], tensors, tensor_bytes)
        for stay in residence.stays(node):
            is_home = home.get(node) == stay.device
            there = lives.setdefault(stay.device, {})
            for storage in own:
                size = (own if is_home else sent)[storage]
                place = storages.place(node, storage, stay.device)
                if place in constants:  # held all the time; a copy of a view of it is not
                    continue
                life = there.setdefault(place, Life(stay.start, stay.stop, size, not is_home, node))
                life.start, life.stop = min(life.start, stay.start), max(life.stop, stay.stop)
                life.size = max(life.size, size)
    return lives


def _inside(residence: Residence, devices: Mapping[str, Device]) -> dict[str, list[Life]]:
    """For each device what operators need for themselves, and what autocast keeps of it."""
    lives: dict[str, list[Life]] = {}
    casts: set[object] = set()
    for node, at in residence.position.items():
        device, autocast = devices[residence.device_of[node]], autocast_around(node, residence.effects)
        there = lives.setdefault(device.name, [])
        size = workspace_bytes(node, autocast, with_scratch=device.has_known_kernels)
        if kept := kept_cast_bytes(node, autocast):
            size -= kept
            sharing, until = residence.autocast(node)
            if sharing not in casts:
                casts.add(sharing)
                there.append(Life(at, until, kept, False, node, inside=True))
        if size:
            there.append(Life(at, at, size, False, node, inside=True))
    return lives


def _keep_inputs(lives: Mapping[str, Mapping[Place, Life]], devices: Mapping[str, Device], end: int) -> None:
    """What the caller has on the very device is there from the first operator to the last."""
    for name, there in lives.items():
        for life in there.values():
            if life.value.op == "placeholder":
                given = tensors_in(value_of(life.value))[0].device
                if is_given_on(given, devices[name].torch_device):
                    life.start, life.stop = 0, end
