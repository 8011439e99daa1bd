"""On which devices a value is, and from when to when, while the parts of an assignment run one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs
from torch.fx import Node

from fxpasses.effects import EffectAnalysis
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.kernels.workspaces import autocasts_open_at

__all__ = ["Residence", "Stay"]


@attrs.frozen
class Stay:
    """On which device a value is, and from when to when, in positions of the schedule, both included."""

    device: str
    start: int
    stop: int


@attrs.frozen(eq=False)
class Residence:
    """The schedule of an assignment, and what keeps values.

    Args:
        effects: What says which regions are open at a node.
        device_of: The device of each node that runs.
        part_of: The part of each node that runs.
        position: Where each of them stands in the schedule.
        spans: The first and the last position of each part.
        region_ends: The last position of a part in a region, by the part and the marker that opens the region.
    """

    effects: EffectAnalysis
    device_of: Mapping[Node, str]
    part_of: Mapping[Node, object]
    position: Mapping[Node, int]
    spans: Mapping[object, tuple[int, int]]
    region_ends: Mapping[tuple[object, Node], int]

    @classmethod
    def of(cls, assignment: Assignment, device_of: Mapping[Node, str], effects: EffectAnalysis) -> Residence:
        """Let the parts run in their order; O(nodes)."""
        schedule = (node for part in assignment.order for node in assignment.partitions[part])
        position = {node: index for index, node in enumerate(schedule)}
        spans: dict[object, tuple[int, int]] = {}
        region_ends: dict[tuple[object, Node], int] = {}
        for node, index in position.items():
            part = assignment.partition_of[node]
            spans[part] = (spans.get(part, (index, index))[0], index)
            region_ends.update(((part, marker), index) for marker in effects.region_stack(node))
        return cls(effects, device_of, assignment.partition_of, position, spans, region_ends)

    @property
    def end(self) -> int:
        """The position after the last node."""
        return len(self.position)

    def stays(self, node: Node) -> Iterable[Stay]:
        """At home, and wherever a part needs a copy."""
        own, start = self.device_of.get(node), self.position.get(node, 0)
        first: dict[str, int] = {} if own is None else {own: start}
        last = dict(first)
        for user in node.users:
            if user not in self.position:  # the output: it stays to the end
                if own is not None:
                    last[own] = self.end
                continue
            device = self.device_of[user]
            entered, left = self.spans[self.part_of[user]]
            is_inside = node in self.position and self.part_of[user] == self.part_of[node]
            stop = self.position[user] if is_inside else left
            begin = start if device == own else entered
            first[device] = min(first.get(device, begin), begin)
            last[device] = max(last.get(device, stop), stop)
            if own is not None and device != own:
                last[own] = max(last[own], self.position[user])
        return [Stay(device, first[device], last[device]) for device in last]

    def autocast(self, node: Node) -> tuple[object, int]:
        """Who shares the casts that autocast keeps for a node (its part, the region, its parameters); until when."""
        part, outermost = self.part_of[node], autocasts_open_at(node, self.effects)[0]
        constants = frozenset(used.target for used in node.all_input_nodes if used.op == "get_attr")
        return (part, outermost, constants), self.region_ends[part, outermost]
