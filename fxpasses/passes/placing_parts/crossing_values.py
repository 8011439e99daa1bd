"""What is known of the values that cross between devices: all under one key, and nothing crosses that is not known."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import MAIN_MEMORY, Device, same_torch_device
from fxpasses.errors import MissingMetadataError, came_from
from fxpasses.metadata import value_of
from fxpasses.values import has_value

__all__ = ["require_values", "under_one_key"]


def require_values(graph_module: GraphModule, device_of: Mapping[str, Device]) -> None:
    """Refuse a value of which nothing is known that goes to another device. Linear in nodes and edges.

    Args:
        graph_module: The top level of a split, as it was before anything moved.
        device_of: The device of each part, by the name of its submodule.

    Raises:
        MissingMetadataError: there is one; the message says how values are written.
    """
    home = _homes(graph_module, device_of)
    for part, device in _parts(graph_module, device_of).items():
        for value in part.all_input_nodes:
            start = home.get(value)
            if not has_value(value) and _crosses(value, start, device):
                where = MAIN_MEMORY if start is None else start.name
                raise MissingMetadataError(
                    f"node {value.name!r}{came_from(value)} goes from {where} to {device.name}, and has no value that "
                    "says what is copied; run MeasureCosts(example_inputs=...) before fxpasses' own split or "
                    "split_module (torch's leaves values out), or export the model",
                    node=value,
                    reason="'val' is missing",
                )


def under_one_key(graph_module: GraphModule) -> None:
    """Write what dynamo calls ``example_value`` under ``val``, in each part, where the devices of values are kept."""
    for part in graph_module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            if "example_value" in node.meta:
                node.meta["val"] = value_of(node)
                del node.meta["example_value"]


def _parts(graph_module: GraphModule, device_of: Mapping[str, Device]) -> dict[Node, Device]:
    calls = graph_module.graph.find_nodes(op="call_module")
    return {call: device_of[str(call.target)] for call in calls if str(call.target) in device_of}


def _homes(graph_module: GraphModule, device_of: Mapping[str, Device]) -> dict[Node, Device]:
    """Where values are made; attributes are where they are used first, inputs and what only they give nowhere."""
    home = _parts(graph_module, device_of)
    for node in graph_module.graph.nodes:
        if node in home:
            for used in node.all_input_nodes:
                if used.op == "get_attr":
                    home.setdefault(used, home[node])
        else:
            found = [home[used] for used in node.all_input_nodes if used in home]
            home.update((node, device) for device in found[:1])
    return home


def _crosses(value: Node, start: Device | None, device: Device) -> bool:
    """What a part makes is copied to each other device, inputs and attributes only into another memory."""
    if start is not None and value.op != "get_attr":
        return start.name != device.name
    memory = "cpu" if start is None else start.torch_device
    return not same_torch_device(torch.device(memory), torch.device(device.torch_device))
