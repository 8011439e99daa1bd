"""Parameters and buffers that several operators use: where these are on several devices, one sends it in each run.

So it stays one tensor and is trained once, and a parameter that is changed is changed for all. It lives on the device
whose part uses it first; what is loaded for offloaded parts comes from main memory instead. State that the model writes
never crosses (its users share a device), and constants of the program, which nobody changes, are on each device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import Device
from fxpasses.editing.attributes import find_attribute
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.single_loads import ParameterLoad

__all__ = ["SentState", "SharedState", "sent_state", "shared_state"]


@attrs.frozen(eq=False)
class SharedState:
    """One parameter or buffer that several operators use.

    Args:
        names: Its ``get_attr`` nodes that are used: one for each of its names.
        users: The operators that use it, in graph order; two or more.
    """

    names: tuple[Node, ...]
    users: tuple[Node, ...]


@attrs.frozen(eq=False)
class SentState:
    """One parameter or buffer that crosses in each run.

    Args:
        names: Its ``get_attr`` nodes that are used.
        source: The name of the device that holds it.
        users: The operators that use it, by the name of each device that it is sent to.
    """

    names: tuple[Node, ...]
    source: str
    users: Mapping[str, tuple[Node, ...]]


def shared_state(graph_module: GraphModule) -> tuple[SharedState, ...]:
    """The state of a graph that two operators or more use, in graph order; time for its attributes and their users."""
    names: dict[int, list[Node]] = {}
    for node in graph_module.graph.find_nodes(op="get_attr"):
        attribute = find_attribute(graph_module, str(node.target))
        if node.users and attribute.kind in ("parameter", "buffer") and isinstance(attribute.value, torch.Tensor):
            names.setdefault(id(attribute.value), []).append(node)
    found = []
    for nodes in names.values():
        users = {user: None for node in nodes for user in node.users if user.op != "output"}
        if len(users) > 1:
            found.append(SharedState(tuple(nodes), tuple(sorted(users))))
    return tuple(found)


def sent_state(
    shared: Iterable[SharedState],
    assignment: Assignment,
    device_of: Mapping[str, Device],
    loads: Sequence[ParameterLoad] = (),
) -> list[SentState]:
    """What of the shared state crosses in each run of a placement.

    Args:
        shared: The shared state of the graph.
        assignment: Which node is in which part.
        device_of: The device of each part.
        loads: What offloaded parts load.
    """
    turn = {part: index for index, part in enumerate(assignment.order)}
    loaded = {(load.value, device_of[load.part].name) for load in loads}
    found = []
    for state in shared:
        placed = [user for user in state.users if user in assignment.partition_of]
        users: dict[str, list[Node]] = {}
        for user in sorted(placed, key=lambda node: turn[assignment.partition_of[node]]):
            device = device_of[str(assignment.partition_of[user])].name
            if loaded.isdisjoint((name, device) for name in state.names):
                users.setdefault(device, []).append(user)
        if len(users) > 1:
            source, *targets = users
            found.append(SentState(state.names, source, {target: tuple(users[target]) for target in targets}))
    return found
