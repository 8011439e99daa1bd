"""Predict how many bytes each device holds at most, by following what is alive while the parts run one after the other.

A storage lives from the node that makes it to the last use of its last alias. What crosses into a part stays until
that part returns, since the caller's arguments hold it; a copy lives on the other device from the first part that
needs it to the last. An input that is on the device already is there all the time. What an operator needs for itself is
there while it runs. What goes into an autocast or grad-mode region stays until the part leaves it, and so do the
parameters that autocast has cast and kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import GraphModule, Node

from fxpasses.devices import Device
from fxpasses.editing.attributes import find_attribute
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.metadata import value_of
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.device_storages import DeviceStorages, Place
from fxpasses.partitioners.costs.kernel_results import result_bytes
from fxpasses.partitioners.costs.workspaces import (
    autocast_around,
    autocasts_open_at,
    homes_in_memory,
    kept_cast_bytes,
    workspace_bytes,
)
from fxpasses.partitioners.tensor_sizes import bytes_by_place, storage_bytes, tensor_bytes, tensors_in

__all__ = ["DeviceMemory", "Life", "MemoryCourse", "follow_memory", "predict_memory"]


@attrs.frozen
class DeviceMemory:
    """Bytes on one device.

    Args:
        parameters: Parameters, buffers and constants; tied ones once.
        activations: Most bytes of values alive at one time, copies included.
        copies: Most bytes of received copies alive at one time.
        gradients: Gradients of the parameters, in training.
        optimizer_state: What the optimizer keeps, in training.
    """

    parameters: int = 0
    activations: int = 0
    copies: int = 0
    gradients: int = 0
    optimizer_state: int = 0

    @property
    def peak(self) -> int:
        """The most bytes held at one time: what has to fit the budget."""
        return self.parameters + self.activations + self.gradients + self.optimizer_state


@attrs.define
class Life:
    """From when to when a storage is on a device, in positions of the schedule, both included.

    Args:
        start: The position at which it comes.
        stop: The last position at which it is there; the length of the schedule for what the model returns.
        size: Bytes.
        copied: Whether it was received from another device, or from the caller.
        value: The first node whose value is in it.
        inside: Whether it is what an operator needs for itself while it runs.
    """

    start: int
    stop: int
    size: int
    copied: bool
    value: Node
    inside: bool = False


@attrs.frozen(eq=False)
class MemoryCourse:
    """What is on each device while the parts run one after the other.

    Args:
        schedule: The nodes of all parts in the order in which they run.
        held: Bytes of parameters, buffers and constants on each device.
        lives: What comes and goes on each device.
        state: Of what is held, the bytes that are no parameters.
        storages: Where each value lives on each device.
    """

    schedule: tuple[Node, ...]
    held: Mapping[str, int]
    lives: Mapping[str, tuple[Life, ...]]
    state: Mapping[str, int] = attrs.field(factory=dict)
    storages: DeviceStorages = attrs.field(factory=DeviceStorages)

    def curve(self, device: str, *, copies_only: bool = False) -> NDArray[np.int64]:
        """Bytes that come and go on a device while each node of the schedule runs, and after the last one."""
        end = len(self.schedule)
        change = np.zeros(end + 2, dtype=np.int64)
        for life in self.lives[device]:
            if life.copied or not copies_only:
                change[life.start] += life.size
                change[min(life.stop, end) + 1] -= life.size
        curve: NDArray[np.int64] = np.cumsum(change)[: end + 1]
        return curve

    def memory(self, device: str) -> DeviceMemory:
        """The most of everything on one device."""
        activations = int(self.curve(device).max(initial=0))
        return DeviceMemory(self.held[device], activations, int(self.curve(device, copies_only=True).max(initial=0)))


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
    schedule = [node for part in assignment.order for node in assignment.partitions[part]]
    position = {node: index for index, node in enumerate(schedule)}
    spans: dict[object, tuple[int, int]] = {}
    for index, node in enumerate(schedule):
        part = assignment.partition_of[node]
        spans[part] = (spans.get(part, (index, index))[0], index)
    home = {node: device_of[str(assignment.partition_of[node])].name for node in schedule}
    names = list(dict.fromkeys(device.name for device in device_of.values()))
    storages = DeviceStorages.of(graph_module, homes_in_memory(graph_module, effects), home)
    regions = _RegionSpans.of(schedule, assignment, effects)
    lives = _lives(graph_module, assignment, storages, position, spans, len(schedule), regions)
    _keep_inputs(lives, {device.name: device for device in device_of.values()}, len(schedule))
    held = _held(graph_module, effects, storages)
    state = _held(graph_module, effects, storages, parameters=False)
    return MemoryCourse(
        tuple(schedule),
        {name: sum(held.get(name, {}).values()) for name in names},
        {name: tuple(lives.get(name, {}).values()) for name in names},
        {name: sum(state.get(name, {}).values()) for name in names},
        storages,
    )


@attrs.frozen(eq=False)
class _RegionSpans:
    """Until when a part is in each region that markers open around its nodes.

    Args:
        effects: What says which regions are open at a node.
        part_of: The part of each node.
        last: The last position of a part in a region, by the part and the marker that opens the region.
    """

    effects: EffectAnalysis
    part_of: Mapping[Node, object]
    last: Mapping[tuple[object, Node], int]

    @classmethod
    def of(cls, schedule: Sequence[Node], assignment: Assignment, effects: EffectAnalysis) -> _RegionSpans:
        last: dict[tuple[object, Node], int] = {}
        for index, node in enumerate(schedule):
            part = assignment.partition_of[node]
            last.update(((part, marker), index) for marker in effects.region_stack(node))
        return cls(effects, assignment.partition_of, last)

    def leaves(self, user: Node, value: Node) -> int:
        """The last position of the outermost region around a user that a value comes into from outside."""
        known = self.effects.region_stack(value)
        entered = next((marker for marker in self.effects.region_stack(user) if marker not in known), None)
        return -1 if entered is None else self.last[self.part_of[user], entered]

    def autocast(self, node: Node) -> tuple[object, int]:
        """Who shares the casts that autocast keeps for a node (its part, the region, its parameters); until when."""
        part, outermost = self.part_of[node], autocasts_open_at(node, self.effects)[0]
        constants = frozenset(used.target for used in node.all_input_nodes if used.op == "get_attr")
        return (part, outermost, constants), self.last[part, outermost]


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


def _lives(
    graph_module: GraphModule,
    assignment: Assignment,
    storages: DeviceStorages,
    position: Mapping[Node, int],
    spans: Mapping[object, tuple[int, int]],
    end: int,
    regions: _RegionSpans,
) -> dict[str, dict[Place, Life]]:
    """For each device the life of each storage on it."""
    lives: dict[str, dict[Place, Life]] = {}
    homes, home = storages.homes, storages.device_of
    constants = {storage for node in graph_module.graph.find_nodes(op="get_attr") for storage in homes[node]}
    for node in graph_module.graph.nodes:
        tensors = tensors_in(value_of(node)) if node.op not in ("get_attr", "output") else []
        if not tensors:
            continue
        own, sent = result_bytes(node, homes[node]), bytes_by_place(homes[node], tensors, tensor_bytes)
        for device, start, stop in _stays(node, assignment, position, spans, home, end, regions):
            for storage in own:
                size = (own if home.get(node) == device else sent)[storage]
                there, place = lives.setdefault(device, {}), storages.place(node, storage, device)
                if place in constants:  # held all the time; a copy of a view of it is not
                    continue
                life = there.setdefault(place, Life(start, stop, size, home.get(node) != device, node))
                life.start, life.stop = min(life.start, start), max(life.stop, stop)
                life.size = max(life.size, size)
    casts: set[object] = set()
    for node, at in position.items():
        there, autocast = lives.setdefault(home[node], {}), autocast_around(node, regions.effects)
        inside = workspace_bytes(node, autocast)
        if kept := kept_cast_bytes(node, autocast):
            inside -= kept
            sharing, until = regions.autocast(node)
            if sharing not in casts:
                casts.add(sharing)
                there[-2 - end - at] = Life(at, until, kept, False, node, inside=True)
        if inside:
            there[-2 - at] = Life(at, at, inside, False, node, inside=True)
    return lives


def _keep_inputs(lives: Mapping[str, Mapping[Place, Life]], devices: Mapping[str, Device], end: int) -> None:
    """What the caller has on the very device is there from the first operator to the last."""
    for name, there in lives.items():
        kind, _, index = devices[name].torch_device.partition(":")
        for life in there.values():
            if life.value.op == "placeholder":
                given = tensors_in(value_of(life.value))[0].device
                if (given.type, str(given.index or 0)) == (kind, index or "0"):
                    life.start, life.stop = 0, end


def _stays(
    node: Node,
    assignment: Assignment,
    position: Mapping[Node, int],
    spans: Mapping[object, tuple[int, int]],
    home: Mapping[Node, str],
    end: int,
    regions: _RegionSpans,
) -> Sequence[tuple[str, int, int]]:
    """On which devices a value is, from when to when: at home, and wherever a part needs a copy."""
    own = home.get(node)
    start = position.get(node, 0)
    last: dict[str, int] = {} if own is None else {own: start}
    first: dict[str, int] = {} if own is None else {own: start}
    for user in node.users:
        if user not in position:  # the output: it stays to the end
            if own is not None:
                last[own] = end
            continue
        device, same_part = home[user], False
        if node in position:
            same_part = assignment.partition_of[user] == assignment.partition_of[node]
        entered, left = spans[assignment.partition_of[user]]
        stop = max(position[user], regions.leaves(user, node)) if same_part else left
        begin = start if device == own else position[user] if own is None else entered
        first[device] = min(first.get(device, begin), begin)
        last[device] = max(last.get(device, stop), stop)
        if own is not None and device != own:
            last[own] = max(last[own], position[user])
    return [(device, first[device], last[device]) for device in last]
