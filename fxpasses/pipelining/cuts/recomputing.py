"""Which values a stage computes again rather than have them sent from stage to stage: whichever is cheaper.

For one stage this is a minimum cut (:mod:`fxpasses.partitioners.placing.replication.making_or_sending`). A value
that the stage needs is either sent, which costs its bytes over all links between here and the last stage that has it;
or computed, which costs the operator's seconds and needs all its inputs here. Stages are looked at in their order,
because what reaches one stage has not so far to travel to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
import torch
from torch.fx import GraphModule, Node

from fxpasses.devices import Topology
from fxpasses.editing.attributes import find_attribute
from fxpasses.effects import EffectAnalysis, analyze_effects
from fxpasses.partitioners.costs.node_costs import measure_node, seconds_on
from fxpasses.partitioners.placing.replication.making_or_sending import NEVER, PICOSECONDS, cheapest
from fxpasses.partitioners.placing.replication.replicas import why_not_replicable
from fxpasses.partitioners.tensor_sizes import tensor_bytes, tensors_in
from fxpasses.pipelining.travelling import Traveller

__all__ = ["cheaper_to_compute"]


def cheaper_to_compute(
    graph_module: GraphModule, stage_of: Mapping[Node, int], topology: Topology
) -> dict[int, list[Node]]:
    """The nodes of other stages that each stage had better compute itself.

    Args:
        graph_module: The graph.
        stage_of: The stage of each node that computes.
        topology: One device for each stage, in their order, and the links between them.

    Returns:
        For each stage that computes anything again, the nodes, in graph order.
    """
    if max(stage_of.values(), default=0) == 0:
        return {}
    search = _Search(graph_module, dict(stage_of), topology, analyze_effects(graph_module))
    found = {stage: search.computed_in(stage) for stage in range(1, len(topology.devices))}
    return {stage: nodes for stage, nodes in found.items() if nodes}


@attrs.define(eq=False)
class _Search:
    """What is known while stages are looked at, one after the other."""

    graph_module: GraphModule
    stage_of: dict[Node, int]
    topology: Topology
    effects: EffectAnalysis
    reached: dict[Node, int] = attrs.field(factory=dict)  # the last stage that a value is in
    replicable: dict[Node, bool] = attrs.field(factory=dict)
    used_in: dict[int, list[Node]] = attrs.field(factory=dict)
    held_in: dict[int, dict[int, None]] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        last = len(self.topology.devices) - 1
        for node in self.graph_module.graph.nodes:
            if node.op != "get_attr":
                self.reached[node] = self.stage_of.get(node, 0)
            if node.op in ("placeholder", "get_attr"):
                continue
            stage = last if node.op == "output" else self.stage_of.get(node, 0)
            for used in node.all_input_nodes:
                if used.op == "get_attr":
                    self.held_in.setdefault(stage, {})[self._identity(used)] = None
                elif self.stage_of.get(used, 0) != stage:
                    self.used_in.setdefault(stage, []).append(used)

    def _identity(self, constant: Node) -> int:
        return id(find_attribute(self.graph_module, str(constant.target)).value)

    def computed_in(self, stage: int) -> list[Node]:
        """What one stage computes again; also notes what is sent to it."""
        needed = dict.fromkeys(self.used_in.get(stage, ()))
        limit = sum(self._sending(node, stage) for node in needed)
        cone = self._cone(needed, stage, limit)
        if not any(price < NEVER for price in cone.values()):
            self.reached.update(dict.fromkeys(needed, stage))
            return []
        sending = {node: self._sending(node, stage) for node in cone}
        made, here = cheapest(cone, sending, needed)
        self.reached.update(dict.fromkeys(here, stage))
        return sorted(made)

    def _cone(self, needed: Iterable[Node], stage: int, limit: int) -> dict[Node, int]:
        """What leads to the needed values, and the price of computing each; not beyond what is never computed."""
        cone: dict[Node, int] = {}
        largest = max((sum(map(tensor_bytes, tensors_in(node.meta.get("val")))) for node in needed), default=0)
        waiting = list(needed)
        while waiting:
            node = waiting.pop()
            if node in cone:
                continue
            price = self._computing(node, stage, largest)
            cone[node] = price if price <= limit else NEVER
            if cone[node] < NEVER:
                waiting.extend(used for used in node.all_input_nodes if used.op != "get_attr")
        return cone

    def _sending(self, node: Node, stage: int) -> int:
        """The price of bringing a value to a stage over all hops from the last one that has it."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            return 0  # told by the shapes of what comes anyway
        tensors = tensors_in(value)
        if not tensors:
            return NEVER
        sizes = [_sent_bytes(tensor, node) for tensor in tensors]
        names = [device.name for device in self.topology.devices]
        hops = range(self.reached.get(node, 0), stage)
        seconds = sum(self.topology.seconds(names[hop], names[hop + 1], size) for hop in hops for size in sizes)
        return round(seconds * PICOSECONDS)

    def _computing(self, node: Node, stage: int, largest: int) -> int:
        """The price of computing a node in a stage; one picosecond at least, so that ties are sent."""
        if not self._is_replicable(node):
            return NEVER
        constants = [used for used in node.all_input_nodes if used.op == "get_attr"]
        if not all(self._has_constant(constant, stage, largest) for constant in constants):
            return NEVER
        return 1 + round(seconds_on(measure_node(node), self.topology.devices[stage]) * PICOSECONDS)

    def _is_replicable(self, node: Node) -> bool:
        if node not in self.replicable:
            self.replicable[node] = not why_not_replicable(node, self.effects)
        return self.replicable[node]

    def _has_constant(self, constant: Node, stage: int, largest: int) -> bool:
        """Whether a stage has a constant anyway, or may get a copy: of what is small and does not learn."""
        if self._identity(constant) in self.held_in.get(stage, ()):
            return True
        value = find_attribute(self.graph_module, str(constant.target)).value
        if isinstance(value, torch.nn.Parameter):
            return False
        return not isinstance(value, torch.Tensor) or tensor_bytes(value) <= largest


def _sent_bytes(tensor: torch.Tensor, node: Node) -> int:
    return Traveller.of(0, node.name, tensor, is_input=node.op == "placeholder").bytes
