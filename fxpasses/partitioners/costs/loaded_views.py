"""Until when memory of loaded parameters is used beyond the parts that these are loaded for.

A view of a parameter (its transpose, a row, a piece) is an operator of its own, and what it gives may go on to other
parts. It is memory of what was loaded, which is there as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.fx import Node

from fxpasses.devices import Device
from fxpasses.effects import EffectAnalysis
from fxpasses.partitioners.assignment import Assignment
from fxpasses.partitioners.costs.kernels.dry_runs import makes_a_copy

__all__ = ["last_uses_of_views"]


def last_uses_of_views(
    schedule: Sequence[Node],
    assignment: Assignment,
    device_of: Mapping[str, Device],
    effects: EffectAnalysis,
    *,
    end: int,
) -> dict[tuple[tuple[int, ...], str], int]:
    """For what is loaded, by its storages, for a part: the last position at which a view of it is used.

    Each load is memory of its own: a view of one is none of another. Time O(nodes and edges).

    Args:
        schedule: The nodes in the order in which they run.
        assignment: The parts.
        device_of: The device of each part.
        effects: What shares memory.
        end: The last position at which the caller has the results; that of the backward in a training step.
    """
    found: dict[tuple[tuple[int, ...], str], int] = {}
    views: dict[Node, set[tuple[tuple[int, ...], str]]] = {}
    for position, node in enumerate(schedule):
        part = str(assignment.partition_of[node])
        own, loads = set(effects.storages(node)), set[tuple[tuple[int, ...], str]]()
        for used in node.all_input_nodes:
            if used.op == "get_attr":
                loads.add((effects.storages(used), part))
            for load in views.get(used, ()):
                found[load] = max(position, found.get(load, position))
                if device_of[load[1]].name == device_of[part].name:  # else this is a view of a copy
                    loads.add(load)
        loads = {load for load in loads if not own.isdisjoint(load[0])}
        if loads and not makes_a_copy(node):  # as a reshape may do
            views[node] = loads
            if any(user.op == "output" for user in node.users):
                found.update(dict.fromkeys(loads, end))
    return found
