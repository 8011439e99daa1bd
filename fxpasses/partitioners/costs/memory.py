"""Predict how many bytes each device holds at most, by following what is alive while the parts run one after the other.

A storage lives from the node that makes it to the last use of its last alias. What crosses into a part stays until
that part returns, since the caller's arguments hold it; a copy lives on the other device from the first part that
needs it to the last. An input that is on the device already is there all the time. What an operator needs for itself is
there while it runs. What goes into a region goes with its last use there, as without autograd nobody else holds it; the
parameters that autocast has cast and kept stay until the part leaves the region. Inputs and state that no operator
reads count where they lie: on the device of the first operator, if they may be there.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from fxpasses.devices import Device, is_given_on, lies_on
from fxpasses.effects import EffectAnalysis
from fxpasses.metadata import value_of
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.device_storages import DeviceStorages, Place
from fxpasses.partitioners.costs.given_parts import check_parts
from fxpasses.partitioners.costs.memory_courses import DeviceMemory, Life, MemoryCourse
from fxpasses.partitioners.costs.memory_facts import MemoryFacts
from fxpasses.partitioners.costs.residence import Residence
from fxpasses.partitioners.tensor_sizes import lying_bytes, tensors_in

__all__ = ["follow_memory", "follow_placed", "predict_memory"]


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

    Raises:
        InputError: a part has no device, or one of the arguments is something else.
        PartitionError: the assignment is of another graph.
        MissingMetadataError: a node has no value.
    """
    check_parts(graph_module, assignment, device_of)
    course = follow_memory(graph_module, assignment, device_of, effects)
    return {name: course.memory(name) for name in course.held}


def follow_memory(
    graph_module: GraphModule,
    assignment: Assignment,
    device_of: Mapping[str, Device],
    effects: EffectAnalysis | None = None,
) -> MemoryCourse:
    """Follow what comes and goes on each device, position by position; the arguments are those of predict_memory."""
    return follow_placed(MemoryFacts.of(graph_module, effects), assignment, device_of)


def follow_placed(facts: MemoryFacts, assignment: Assignment, device_of: Mapping[str, Device]) -> MemoryCourse:
    """The same for a graph that is measured already: O(nodes and edges) for each placement."""
    home = {node: device_of[str(part)].name for node, part in assignment.partition_of.items()}
    devices = {device.name: device for device in device_of.values()}
    storages = DeviceStorages.of(facts.graph_module, facts.homes, home)
    residence = Residence.of(assignment, home, facts.effects)
    values, inside = _values(facts, storages, residence), _inside(facts, residence, devices)
    first = _first_to_last(facts, home, devices)
    _keep_inputs(facts, values, first, residence.end)
    held, unread = _held(facts, home), _unread(facts, first)
    state, unread_state = _held(facts, home, parameters=False), _unread(facts, first, parameters=False)
    return MemoryCourse(
        tuple(residence.position),
        {name: sum(held.get(name, {}).values()) + unread[name] for name in devices},
        {name: (*values.get(name, {}).values(), *inside.get(name, ())) for name in devices},
        {name: sum(state.get(name, {}).values()) + unread_state[name] for name in devices},
        storages,
        unread=unread,
    )


def _held(
    facts: MemoryFacts, home: Mapping[Node, str], *, parameters: bool = True
) -> dict[str, dict[tuple[int, ...], int]]:
    held: dict[str, dict[tuple[int, ...], int]] = {}
    read = ((state, user) for state in facts.read_state for user in state.node.users)
    called = ((state, state.node) for state in facts.called_state)
    for state, user in itertools.chain(read, called):
        if user in home and (parameters or not state.is_parameter):
            sizes = held.setdefault(home[user], {})
            sizes[state.storages] = max(sizes.get(state.storages, 0), state.size)
    return held


def _first_to_last(facts: MemoryFacts, home: Mapping[Node, str], devices: Mapping[str, Device]) -> dict[str, Device]:
    """The devices, that of the graph's first operator before the others."""
    first = next((home[node] for node in facts.graph_module.graph.nodes if node in home), None)
    return dict(devices) if first is None else {first: devices[first], **devices}


def _unread(facts: MemoryFacts, devices: Mapping[str, Device], *, parameters: bool = True) -> dict[str, int]:
    """The bytes that no operator reads, on the first of the devices where each of them lies."""
    found = dict.fromkeys(devices, 0)
    for state in facts.unread_state:
        name = _lies_on(state.device, devices)
        if name and (parameters or not state.is_parameter):
            found[name] += state.size
    return found


def _values(facts: MemoryFacts, storages: DeviceStorages, residence: Residence) -> dict[str, dict[Place, Life]]:
    """For each device the life of each storage on it; what is held all the time is none."""
    lives: dict[str, dict[Place, Life]] = {}
    home, constants = storages.device_of, facts.constants
    for node, made, sent in facts.values:
        for stay in residence.stays(node):
            is_home = home.get(node) == stay.device
            there = lives.setdefault(stay.device, {})
            for storage, size in (made if is_home else sent).items():
                place = storages.place(node, storage, stay.device)
                if place in constants:  # held all the time; a copy of a view of it is not
                    continue
                life = there.setdefault(place, Life(stay.start, stay.stop, size, not is_home, node, place=place))
                life.start, life.stop = min(life.start, stay.start), max(life.stop, stay.stop)
                life.size = max(life.size, size)
    return lives


def _inside(facts: MemoryFacts, residence: Residence, devices: Mapping[str, Device]) -> dict[str, list[Life]]:
    """For each device what operators need for themselves, and what autocast keeps of it."""
    lives: dict[str, list[Life]] = {}
    casts: set[object] = set()
    for node, at in residence.position.items():
        device = devices[residence.device_of[node]]
        there = lives.setdefault(device.name, [])
        size, kept = facts.inside(node, device)
        if kept:
            sharing, until = residence.autocast(node)
            if sharing not in casts:
                casts.add(sharing)
                there.append(Life(at, until, kept, False, node, inside=True))
        if size:
            there.append(Life(at, at, size, False, node, inside=True))
    return lives


def _keep_inputs(
    facts: MemoryFacts, lives: dict[str, dict[Place, Life]], devices: Mapping[str, Device], end: int
) -> None:
    """What the caller has on the very device is there from the first operator to the last, as it lies there.

    What no operator reads counts on one of the devices where it may be; not on hardware that is not here, which it is
    not brought to.
    """
    read = set()
    for name, there in lives.items():
        for life in there.values():
            if life.value.op == "placeholder":
                read.add(life.value)
                if is_given_on(_given(life.value).device, devices[name].torch_device):
                    life.start, life.stop, life.size = 0, end, lying_bytes(_given(life.value))
    for node in facts.graph_module.graph.find_nodes(op="placeholder"):
        if node in read or not tensors_in(value_of(node)):
            continue
        given = _given(node)
        if name := _lies_on(given.device, devices):
            (storage, *_) = facts.homes[node]
            there = lives.setdefault(name, {})
            there[storage] = Life(0, end, lying_bytes(given), copied=True, value=node, place=storage)


def _lies_on(given: torch.device, devices: Mapping[str, Device]) -> str:
    """The first device on which something is that was there before."""
    return next((name for name, device in devices.items() if lies_on(given, device)), "")


def _given(node: Node) -> Tensor:
    """The tensor that an input is."""
    return tensors_in(value_of(node))[0]
