"""What parts take and what crosses between them, kept up to date by what a move changes; compiled."""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers.annealing.graphs import Graph
from fxpasses.partitioners.solvers.compiling import inlined
from fxpasses.partitioners.solvers.device_bytes import drop, hold
from fxpasses.partitioners.solvers.whole_parts.parts import Parts, Shared

__all__ = ["makespan", "move", "rebuild"]


@inlined
def move(graph: Graph, parts: Parts, unit: int, target: int) -> None:
    """Put a unit on another device, in time O(its values × devices + its neighbours)."""
    home = parts.home[unit]
    for place in range(graph.used_start[unit], graph.used_start[unit + 1]):
        value = graph.used[place]
        made = parts.home[graph.source[value]]
        parts.users[value, home] -= 1
        if parts.users[value, home] == 0:
            parts.sent[made, home] -= graph.send[value, made, home]
        if parts.users[value, target] == 0:
            parts.sent[made, target] += graph.send[value, made, target]
        parts.users[value, target] += 1
    for place in range(graph.made_start[unit], graph.made_start[unit + 1]):
        value = graph.made[place]
        for device in range(len(parts.busy)):
            if parts.users[value, device]:
                parts.sent[home, device] -= graph.send[value, home, device]
                parts.sent[target, device] += graph.send[value, target, device]
    for place in range(graph.before_start[unit], graph.before_start[unit + 1]):
        other = parts.home[graph.before[place]]
        parts.flow[other, home] -= 1
        parts.flow[other, target] += 1
    for place in range(graph.after_start[unit], graph.after_start[unit + 1]):
        other = parts.home[graph.after[place]]
        parts.flow[home, other] -= 1
        parts.flow[target, other] += 1
    parts.home[unit] = target
    parts.members[home] -= 1
    parts.members[target] += 1
    parts.busy[home] -= graph.weight[unit, home]
    parts.busy[target] += graph.weight[unit, target]
    if graph.counts_bytes:
        drop(graph, parts, unit, home)
        hold(graph, parts, unit, target)


@inlined
def rebuild(graph: Graph, parts: Parts) -> None:
    """All sums of the assignment, anew."""
    parts.busy[:] = 0.0
    parts.members[:] = 0
    parts.flow[:] = 0
    parts.sent[:] = 0.0
    parts.users[:] = 0
    parts.bytes[:] = 0.0
    parts.holders[:] = 0
    parts.ranks[:] = 0
    parts.top[:] = 0
    for unit in range(len(parts.home)):
        home = parts.home[unit]
        parts.busy[home] += graph.weight[unit, home]
        parts.members[home] += 1
        hold(graph, parts, unit, home)
        for place in range(graph.used_start[unit], graph.used_start[unit + 1]):
            parts.users[graph.used[place], home] += 1
        for place in range(graph.after_start[unit], graph.after_start[unit + 1]):
            parts.flow[home, parts.home[graph.after[place]]] += 1
    for value in range(len(graph.source)):
        made = parts.home[graph.source[value]]
        for device in range(len(parts.busy)):
            if parts.users[value, device]:
                parts.sent[made, device] += graph.send[value, made, device]


@inlined
def makespan(parts: Parts, shared: Shared) -> float:
    """Seconds until the last part ends; infinite where parts wait for each other. Time O(devices²)."""
    count = _order(parts, shared)
    if count < 0:
        return math.inf
    parts.begin[:] = 0.0
    if len(shared.send):
        _load(parts, shared, count)
    longest = 0.0
    for place in range(count):
        device = parts.order[place]
        end = parts.begin[device] + parts.busy[device]
        longest = max(longest, end)
        for later in range(place + 1, count):
            target = parts.order[later]
            if parts.flow[device, target]:
                arrival = max(end, parts.loaded[device, target]) + parts.sent[device, target]
                parts.begin[target] = max(parts.begin[target], arrival)
    return longest


@inlined
def _order(parts: Parts, shared: Shared) -> int:
    """Write down the devices as their parts run, and return how many there are; -1 where they wait for each other.

    Of those that could be next the one is taken that holds the first unit.
    """
    devices = len(parts.busy)
    used = 0
    for device in range(devices):
        parts.first[device] = device
        parts.waits[device] = 0
        used += parts.members[device] > 0
    if len(shared.send):  # only they see what is the first of two that do not wait for each other
        for unit in range(len(parts.home) - 1, -1, -1):
            parts.first[parts.home[unit]] = unit
    for source in range(devices):
        for target in range(devices):
            if source != target and parts.flow[source, target]:
                parts.waits[target] += 1
    for place in range(used):
        ready = -1
        for device in range(devices):
            is_ready = parts.members[device] > 0 and parts.waits[device] == 0
            if is_ready and (ready < 0 or parts.first[device] < parts.first[ready]):
                ready = device
        if ready < 0:
            return -1
        parts.order[place] = ready
        parts.waits[ready] = -1
        for target in range(devices):
            if target != ready and parts.flow[ready, target]:
                parts.waits[target] -= 1
    return used


@inlined
def _load(parts: Parts, shared: Shared, count: int) -> None:
    """Seconds that each link is busy with parameters from the beginning on: the first part that uses one sends it."""
    parts.loaded[:] = 0.0
    for place in range(count):
        parts.waits[parts.order[place]] = place  # its turn, from here on
    for parameter in range(len(shared.send)):
        source = parts.home[shared.user[shared.start[parameter]]]
        for place in range(shared.start[parameter], shared.start[parameter + 1]):
            device = parts.home[shared.user[place]]
            if parts.waits[device] < parts.waits[source]:
                source = device
        for place in range(shared.start[parameter], shared.start[parameter + 1]):
            device = parts.home[shared.user[place]]
            if device != source and parts.waits[device] >= 0:
                parts.loaded[source, device] += shared.send[parameter, source, device]
                parts.waits[device] = -1 - parts.waits[device]  # it has it
        for place in range(shared.start[parameter], shared.start[parameter + 1]):
            device = parts.home[shared.user[place]]
            if parts.waits[device] < 0:
                parts.waits[device] = -1 - parts.waits[device]
    for source in range(len(parts.busy)):
        for target in range(len(parts.busy)):
            parts.begin[target] = max(parts.begin[target], parts.loaded[source, target])
