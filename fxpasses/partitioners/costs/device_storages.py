"""Which memory a value lies in on each device: that in which it was made, or that of a copy which was sent there.

A value that crosses is copied, and what views it on the other device is a view of this copy. So one storage of the
graph may be several on one device: two views of it that were sent, or a view that was sent there and back.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from torch.fx import GraphModule, Node

__all__ = ["DeviceStorages", "Place"]

Place = int | tuple[Node, int]
"""A storage where it was made; or a copy of it, by the value that was sent."""


@attrs.frozen(eq=False)
class DeviceStorages:
    """Where values lie once each node has a device.

    Args:
        homes: The storages of each value, see :func:`~fxpasses.partitioners.costs.kernels.workspaces.homes_in_memory`.
        device_of: The device of each node that runs; inputs and attributes are on every device that uses them.
        copies: For each node that works on a copy, the copy that its value is a view of, by storage.
    """

    homes: Mapping[Node, tuple[int, ...]] = attrs.field(factory=dict)
    device_of: Mapping[Node, str] = attrs.field(factory=dict)
    copies: Mapping[Node, Mapping[int, Place]] = attrs.field(factory=dict)

    @classmethod
    def of(
        cls, graph_module: GraphModule, homes: Mapping[Node, tuple[int, ...]], device_of: Mapping[Node, str]
    ) -> DeviceStorages:
        """Follow the views that each device makes of what it was sent; O(nodes and edges)."""
        copies: dict[Node, dict[int, Place]] = {}
        found = cls(homes, device_of, copies)
        for node in graph_module.graph.nodes:
            device = device_of.get(node)
            for used in node.all_input_nodes if device is not None else ():
                for storage in homes[used]:
                    place = found.place(used, storage, str(device))
                    if place != storage and storage in homes[node]:
                        copies.setdefault(node, {}).setdefault(storage, place)  # a view is one of its first operand
        return found

    def place(self, node: Node, storage: int, device: str) -> Place:
        """Where a storage of a value is on a device that has the value."""
        if self.device_of.get(node, device) != device:
            return node, storage
        return self.copies[node].get(storage, storage) if node in self.copies else storage
