"""What a placement takes at least, as far as that is seen before it is cut into parts: most changes are worse.

Operators start once what they need is there, wherever it is made, and a device runs one after the other. Parts, which
wait for all that they need, end no sooner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
from torch.fx import Node

from fxpasses.devices import Topology
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.objective_values import Objective

__all__ = ["LeastValues"]

ROUNDING = 1 - 1e-9
"""Sums in another order differ by less."""


@attrs.frozen(eq=False)
class LeastValues:
    """What is known of the operators of a graph wherever they are.

    Args:
        figures: The measured graph.
        topology: Devices and links.
        operands: For each operator the positions of the operators whose values it takes.
    """

    figures: GraphFigures
    topology: Topology
    operands: tuple[tuple[int, ...], ...]
    _seconds: dict[tuple[int, str], float] = attrs.field(factory=dict, init=False)
    _copies: dict[tuple[int, str, str], float] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(cls, figures: GraphFigures, topology: Topology) -> LeastValues:
        """Look at the graph once."""
        place = figures.position
        operands = tuple(tuple(place[used] for used in node.all_input_nodes if used in place) for node in figures.nodes)
        return cls(figures, topology, operands)

    def asked(self, objective: Objective) -> Callable[[Mapping[Node, str]], float]:
        """What tells by the devices of all operators what no parts of these are below: 0 where nothing is known."""
        known = {"latency": self.latency, "throughput": self.throughput}
        return known.get(objective, lambda _: 0.0)

    def latency(self, home: Mapping[Node, str]) -> float:
        """Seconds until the last operator ends; O(nodes · log nodes + edges)."""
        homes = [home[node] for node in self.figures.nodes]
        ends, busy = list[float](), dict[str, list[tuple[float, float]]]()
        for at, (own, operands) in enumerate(zip(homes, self.operands, strict=True)):
            start = 0.0
            for used in operands:
                comes = ends[used] if homes[used] == own else ends[used] + self._copy(used, homes[used], own)
                start = max(start, comes)
            taken = self._taken(at, own)
            ends.append(start + taken)
            busy.setdefault(own, []).append((start, taken))
        return max([*ends, *map(_one_after_the_other, busy.values())], default=0.0) * ROUNDING

    def throughput(self, home: Mapping[Node, str]) -> float:
        """Seconds of the busiest device; O(nodes and edges)."""
        homes = [home[node] for node in self.figures.nodes]
        load = dict.fromkeys(homes, 0.0)
        targets: dict[int, dict[str, None]] = {}
        for at, (own, operands) in enumerate(zip(homes, self.operands, strict=True)):
            load[own] += self._taken(at, own)
            for used in operands:
                if homes[used] != own:
                    targets.setdefault(used, {})[own] = None
        for used, others in targets.items():
            sending = {other: self._copy(used, homes[used], other) for other in others}
            load[homes[used]] += max(sending.values())
            for other, seconds in sending.items():
                load[other] += seconds
        return max(load.values(), default=0.0) * ROUNDING

    def _taken(self, at: int, own: str) -> float:
        found = self._seconds.get((at, own))
        if found is None:
            found = self._seconds[at, own] = self.figures.measured(self.figures.nodes[at], self.topology[own])
        return found

    def _copy(self, at: int, source: str, target: str) -> float:
        found = self._copies.get((at, source, target))
        if found is None:
            node = self.figures.nodes[at]
            size, back = self.figures.sent(node), self.figures.returned(node)
            found = self._copies[at, source, target] = (
                self.topology.seconds(source, target, size, back) if size else 0.0
            )
        return found


def _one_after_the_other(jobs: list[tuple[float, float]]) -> float:
    """When a device is done that runs one at a time, none before its start."""
    now = 0.0
    for start, taken in sorted(jobs):
        now = max(now, start) + taken
    return now
