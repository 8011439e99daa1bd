"""What it costs a device to make a value itself, beside what it costs to have it sent there."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

import attrs
import torch
from torch.fx import Node

from fxpasses.devices import MAIN_MEMORY, Device, Link, Topology, is_given_on
from fxpasses.editing.attributes import find_attribute
from fxpasses.metadata import value_of
from fxpasses.partitioners.costs.graph_figures import GraphFigures, is_compute, value_bytes
from fxpasses.partitioners.placing.colocation import backward_partners
from fxpasses.partitioners.placing.names.selectors import select
from fxpasses.partitioners.placing.replication.making_or_sending import NEVER, PICOSECONDS, cheapest
from fxpasses.partitioners.placing.replication.replicas import why_not_replicable
from fxpasses.partitioners.placing.requests import Replicate, Request
from fxpasses.partitioners.tensor_sizes import tensors_in

__all__ = ["Prices", "banned_from", "may_be_made_again"]

FLOPS_A_BYTE = 16
"""Up to so many operations for a byte of its result a node is cheap by itself: no product, no large sum."""


@attrs.frozen(eq=False)
class Prices:
    """What it costs to make a value on a device, and to send it there."""

    figures: GraphFigures
    topology: Topology
    home: Mapping[Node, str]
    how: Replicate
    banned: Mapping[Node, frozenset[str] | None]
    _replicable: dict[Node, bool] = attrs.field(factory=dict, init=False)

    def made_on(self, device: Device) -> list[Node]:
        """What a device makes itself of the values of others that it uses, and of what leads to them."""
        here = [node for node in self.figures.nodes if self.home[node] == device.name]
        needed = dict.fromkeys(
            used for node in here for used in node.all_input_nodes if self.home.get(used, device.name) != device.name
        )
        making = self._cone(needed, device, _Held.of(self.figures, here))
        far = {node for node in making if self.home.get(node, device.name) != device.name}
        if all(making[node] == NEVER for node in far):
            return []
        sending = {node: self.sending(node, device) for node in making}
        made, _there = cheapest(making, sending, needed)
        return sorted(node for node in made if node in far)

    def _cone(self, needed: Iterable[Node], device: Device, held: _Held) -> dict[Node, int]:
        """What leads to the needed values, and the price of making each; not beyond what is there or never made.

        Nobody makes what is sent for as little. And whoever makes a value makes all on some way from it to a needed
        one: where each such way costs more than to send what is needed, nobody does. The cheapest way comes first
        (Dijkstra 1959); O((n + m) log n) of what is reached.
        """
        limit = sum(self.sending(node, device) for node in needed)
        largest = max(map(self.figures.crossing, needed), default=0)
        making: dict[Node, int] = {}
        waiting = [(0, number, node) for number, node in enumerate(needed)]
        pushed = len(waiting)
        while waiting:
            spent, _number, node = heapq.heappop(waiting)
            if node in making:
                continue
            leaf = not is_compute(node)
            price = self._leaf(node, device, held, largest) if leaf else self.making(node, device)
            is_here = self.home.get(node) == device.name
            is_worthwhile = spent + price <= limit and (is_here or price < self.sending(node, device))
            making[node] = price if is_worthwhile else NEVER
            if is_worthwhile and not is_here:
                for used in node.all_input_nodes:
                    heapq.heappush(waiting, (spent + price, pushed, used))
                    pushed += 1
        return making

    def sending(self, node: Node, device: Device) -> int:
        """The price of a value from its home; inputs and constants are not sent from device to device."""
        if not is_compute(node):
            return NEVER
        if self.home[node] == device.name:
            return 0
        value = value_of(node)
        if isinstance(value, (tuple, list)):
            return NEVER
        size, back = self.figures.sent(node), self.figures.returned(node)
        seconds = self.topology.seconds(self.home[node], device.name, size, back) if size else 0.0
        return self._price(seconds, size + back)

    def _price(self, seconds: float, size: int) -> int:
        return 1000 * size if self.how == "always" else round(min(seconds * PICOSECONDS, NEVER))

    def making(self, node: Node, device: Device) -> int:
        """The price of computing a node on a device; one at least, so that ties are sent."""
        if self.home[node] == device.name:
            return 0
        if node not in self._replicable:
            self._replicable[node] = self._may(node)
        banned = self.banned.get(node, frozenset())
        if not self._replicable[node] or banned is None or device.name in banned:
            return NEVER
        if self.how == "always":
            return 1
        return 1 + round(self.figures.measured(node, device) * PICOSECONDS)

    def _may(self, node: Node) -> bool:
        cost = self.figures.costs[self.figures.position[node]]
        if self.how == "always" and cost.flops > FLOPS_A_BYTE * max(1, cost.output_bytes):
            return False
        return node not in self.figures.trained and not why_not_replicable(node, self.figures.effects)

    def _leaf(self, node: Node, device: Device, held: _Held, largest: int) -> int:
        """The price of an input or a constant on a device: nothing where it is used anyway."""
        size, tensors = value_bytes(node), tensors_in(value_of(node))
        if node in held.inputs or (
            node.op == "placeholder" and all(is_given_on(tensor.device, device.torch_device) for tensor in tensors)
        ):
            return 0
        if node.op == "get_attr":
            if held.constants.issuperset(self.figures.effects.storages(node)):
                return 0
            attribute = find_attribute(self.figures.graph_module, str(node.target))
            if _is_parameter(self.figures, node) or size > largest:
                return NEVER
            if attribute.kind == "constant":
                return 0
            holder = next(self.home[user] for user in sorted(node.users) if user in self.home)
            return self._price(self.topology.seconds(holder, device.name, size), size)
        return self._price(Link(MAIN_MEMORY, device.name).seconds(size), size)


@attrs.frozen
class _Held:
    """What a device has anyway: the storages of its constants, and inputs."""

    constants: frozenset[int]
    inputs: frozenset[Node]

    @classmethod
    def of(cls, figures: GraphFigures, nodes: Iterable[Node]) -> _Held:
        """What some nodes use."""
        nodes = list(nodes)
        constants = frozenset(storage for node in nodes for storage in figures.constants[figures.position[node]])
        used = (used for node in nodes for used in node.all_input_nodes)
        return cls(constants, frozenset(node for node in used if node.op == "placeholder"))


def may_be_made_again(figures: GraphFigures, request: Request) -> frozenset[Node]:
    """The nodes that some device may compute again: what reads a parameter only where something else reads it, too."""
    banned, found = banned_from(figures, request), set[Node]()
    for node in figures.nodes:
        if node not in figures.trained and banned.get(node, frozenset()) is not None:
            state = [used for used in node.all_input_nodes if used.op == "get_attr" and _is_parameter(figures, used)]
            if all(len(used.users) > 1 for used in state) and not why_not_replicable(node, figures.effects):
                found.add(node)
    return frozenset(found)


def _is_parameter(figures: GraphFigures, node: Node) -> bool:
    return isinstance(find_attribute(figures.graph_module, str(node.target)).value, torch.nn.Parameter)


def banned_from(figures: GraphFigures, request: Request) -> dict[Node, frozenset[str] | None]:
    """The devices that a node must not be computed on again; None for all: its place is settled by somebody else."""
    banned: dict[Node, frozenset[str] | None] = {}
    asked = request.supports is not None or any(device.supports is not None for device in request.topology.devices)
    if asked:
        every = frozenset(device.name for device in request.topology.devices)
        rows = figures.seconds(request.topology.devices, request.supports)
        banned = {node: every.difference(row) for node, row in zip(figures.nodes, rows, strict=True)}
    for key, names in request.forbidden.items():
        for node in select(figures, key, "forbidden"):
            banned[node] = frozenset(names) | (banned.get(node) or frozenset())
    settled = [key for group in request.colocate for key in group]
    for key, option in (*((key, "pinned") for key in request.pinned), *((key, "colocate") for key in settled)):
        banned.update(dict.fromkeys(select(figures, key, option)))
    for backward, forward in backward_partners(figures).items():
        banned[backward] = banned[forward] = None
    return banned
