"""Parts of a graph and their devices, as callers hand them to predictions: what does not fit together is refused."""

from __future__ import annotations

from collections.abc import Mapping

from torch.fx import GraphModule

from fxpasses.devices import Device
from fxpasses.errors import InputError, PartitionError
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.node_costs import require_value

__all__ = ["check_parts"]


def check_parts(graph_module: GraphModule, assignment: Assignment, device_of: Mapping[str, Device]) -> None:
    """Refuse parts of another graph, parts without a device, and values that nobody knows. O(nodes).

    Args:
        graph_module: The graph.
        assignment: Its parts.
        device_of: The device of each, by the name of the part.

    Raises:
        InputError: one of them is something else, or a part has no device.
        PartitionError: the parts are of another graph.
        MissingMetadataError: a node has no value.
    """
    if not isinstance(graph_module, GraphModule):
        raise InputError(f"A graph is a GraphModule, not {type(graph_module).__name__}; of a program take .module().")
    if not isinstance(assignment, Assignment):
        raise InputError(f"Which node is in which part is an Assignment, not {type(assignment).__name__}.")
    if assignment.graph is not graph_module.graph:
        raise PartitionError("The assignment is of another graph than the one that is given; make it of this one.")
    if not isinstance(device_of, Mapping):
        raise InputError(f"The devices of parts are a dict by the names of the parts, not {device_of!r}.")
    for part in map(str, assignment.order):
        if part not in device_of:
            raise InputError(
                f"Part {part!r} has no device; there are devices for {', '.join(map(repr, device_of)) or 'none'}."
            )
        if not isinstance(device_of[part], Device):
            raise InputError(f"The device of part {part!r} is a fxpasses.Device, not {device_of[part]!r}.")
    for node in graph_module.graph.nodes:
        require_value(node)
