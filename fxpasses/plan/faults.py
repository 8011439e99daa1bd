"""What no plan may do, however complete it is: tear apart what belongs together, compute twice what has an effect.

Nor may it let a part compute again what nothing there uses: that would change nothing, and is a slip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from torch.fx import GraphModule, Node

from fxpasses.effects import analyze_effects
from fxpasses.partitioners.costs.graph_figures import GraphFigures
from fxpasses.partitioners.placing.colocation import must_share, why_shared
from fxpasses.partitioners.placing.replication.replicas import why_not_replicable
from fxpasses.plan.fitting import Fit
from fxpasses.plan.parts import PartPlan

__all__ = ["Refused", "Torn", "not_replicable", "torn_apart"]


@attrs.frozen(eq=False)
class Torn:
    """Two operators that must share a device and do not, and why they must."""

    first: Node
    second: Node
    why: str


def torn_apart(graph_module: GraphModule, home: Mapping[Node, str]) -> list[Torn]:
    """Find what a placement must not separate: a copy would get the writes, or a tuple would be sent whole.

    Args:
        graph_module: The graph.
        home: The device of each operator.

    Raises:
        MissingMetadataError: a node has neither a value nor a cost.
    """
    figures = GraphFigures.of(graph_module)
    torn = []
    for first, *others in must_share(figures):
        second = next((node for node in others if home[node] != home[first]), None)
        if second is not None:
            torn.append(Torn(first, second, why_shared((first, *others), first, second, figures)))
    return torn


@attrs.frozen(eq=False)
class Refused:
    """An operator that a part shall compute again and must not, how the plan calls it, and why."""

    node: Node
    name: str
    part: str
    why: str


def not_replicable(parts: Sequence[PartPlan], graph_module: GraphModule, given: Fit) -> list[Refused]:
    """Find what parts must not compute again: what is random, has an effect, reads what is written, or is not used.

    Args:
        parts: The parts of the plan, in execution order.
        graph_module: The graph.
        given: How they lie over it.
    """
    if not given.again:
        return []
    effects = analyze_effects(graph_module)
    refused = [
        Refused(node, given.keys[node], part, why)
        for part, nodes in given.again.items()
        for node in nodes
        if (why := why_not_replicable(node, effects))
    ]
    used = _used_again(parts, given)
    return refused or [
        Refused(nodes[0], entry, part, f"neither it nor a later part on its device uses {_what_of(entry)}")
        for part, entry, nodes in given.again_by_entry
        if used[part].isdisjoint(nodes)
    ]


def _what_of(entry: str) -> str:
    return "a value of that" if entry.endswith("/*") else "its value"


def _used_again(parts: Sequence[PartPlan], given: Fit) -> dict[str, set[Node]]:
    """What each part computes again and uses, or a later part on its device: all else would be left out."""
    members: dict[str, list[Node]] = {}
    for node, name in given.part_of.items():
        members.setdefault(name, []).append(node)
    served: dict[str, set[Node]] = {part.device: set() for part in parts}
    used: dict[str, set[Node]] = {}
    for part in reversed(parts):
        there = served[part.device]
        there.update(members.get(part.name, ()))
        used[part.name] = set()
        for node in sorted(given.again.get(part.name, ()), reverse=True):
            if not there.isdisjoint(node.users):
                used[part.name].add(node)
                there.add(node)
    return used
