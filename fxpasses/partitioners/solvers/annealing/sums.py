"""Loads, users of each value and bytes of an assignment, kept up to date by what a move changes; compiled."""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers.annealing.graphs import Graph, State
from fxpasses.partitioners.solvers.compiling import inlined
from fxpasses.partitioners.solvers.device_bytes import drop, held_bytes, hold
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["keep", "move", "power_of", "rebuild", "root", "squared", "turn", "turn_back"]


@inlined
def _receive(graph: Graph, state: State, value: int, made: int) -> None:
    """Add a value to the loads: what each device that uses it receives, and the slowest of these where it is made."""
    slowest = 0.0
    for device in range(len(state.load)):
        if device != made and state.users[value, device]:
            seconds = graph.send[value, made, device]
            state.load[device] += seconds
            slowest = max(slowest, seconds)
    state.load[made] += slowest


@inlined
def _hand_over(graph: Graph, state: State, value: int, home: int, target: int) -> None:
    """A user of a value goes to another device; the loads change only where it was the only user, or is the first."""
    made = state.home[graph.source[value]]
    leaves = state.users[value, home] == 1 and home != made
    joins = state.users[value, target] == 0 and target != made
    state.users[value, home] -= 1
    state.users[value, target] += 1
    if leaves or joins:
        before = after = 0.0
        for device in range(len(state.load)):
            if state.users[value, device] and device != made and not (joins and device == target):
                before = max(before, graph.send[value, made, device])
        after = before
        if leaves:
            before = max(before, graph.send[value, made, home])
            state.load[home] -= graph.send[value, made, home]
        if joins:
            after = max(after, graph.send[value, made, target])
            state.load[target] += graph.send[value, made, target]
        state.load[made] += after - before


@inlined
def _make_elsewhere(graph: Graph, state: State, value: int, home: int, target: int) -> None:
    """The unit that makes a value goes to another device."""
    before = after = 0.0
    for device in range(len(state.load)):
        if state.users[value, device]:
            if device != home:
                before = max(before, graph.send[value, home, device])
                state.load[device] -= graph.send[value, home, device]
            if device != target:
                after = max(after, graph.send[value, target, device])
                state.load[device] += graph.send[value, target, device]
    state.load[home] -= before
    state.load[target] += after


@inlined
def move(graph: Graph, state: State, unit: int, target: int) -> None:
    """Take a unit to another device, in time O(its values × devices)."""
    home = state.home[unit]
    for place in range(graph.used_start[unit], graph.used_start[unit + 1]):
        _hand_over(graph, state, graph.used[place], home, target)
    for place in range(graph.made_start[unit], graph.made_start[unit + 1]):
        _make_elsewhere(graph, state, graph.made[place], home, target)
    state.home[unit] = target
    state.load[home] -= graph.weight[unit, home]
    state.load[target] += graph.weight[unit, target]
    if graph.counts_bytes:
        drop(graph, state, unit, home)
        hold(graph, state, unit, target)


@inlined
def rebuild(graph: Graph, state: State) -> None:
    """All sums of the assignment, anew."""
    state.load[:] = 0.0
    state.bytes[:] = 0.0
    state.users[:] = 0
    state.holders[:] = 0
    state.ranks[:] = 0
    state.top[:] = 0
    for unit in range(len(state.home)):
        state.load[state.home[unit]] += graph.weight[unit, state.home[unit]]
        hold(graph, state, unit, state.home[unit])
        for place in range(graph.used_start[unit], graph.used_start[unit + 1]):
            state.users[graph.used[place], state.home[unit]] += 1
    for value in range(len(graph.source)):
        _receive(graph, state, value, state.home[graph.source[value]])


@inlined
def squared(number: float, squarings: int) -> float:
    """A number to the power of ``2 ** squarings``."""
    power = min(max(number, 0.0), 1e4)
    for _ in range(squarings):
        power *= power
    return power


@inlined
def root(number: float, squarings: int) -> float:
    """The inverse of :func:`squared`."""
    for _ in range(squarings):
        number = math.sqrt(number)
    return number


@inlined
def power_of(graph: Graph, state: State, scale: float, squarings: int) -> float:
    """The sum of the loads' powers, each squared so many times."""
    if graph.by_bytes:
        for device in range(len(state.load)):
            state.load[device] = held_bytes(graph, state, device)
    share = 1.0 / scale
    for device in range(len(state.load)):
        state.power[device] = min(max(state.load[device] * share, 0.0), 1e4)
    for _ in range(squarings):
        for device in range(len(state.load)):
            state.power[device] *= state.power[device]
    total = 0.0
    for device in range(len(state.load)):
        total += state.power[device]
    return total


@inlined
def turn(graph: Graph, state: State, count: int) -> int:
    """Make the move, and write down the way back; its elementary steps."""
    for device in range(len(state.load)):
        state.load_before[device] = state.load[device]
    steps = graph.move_steps
    for index in range(count):
        unit, home = state.moved[index], state.home[state.moved[index]]
        move(graph, state, unit, state.target[index])
        state.target[index] = home
        steps += graph.unit_steps[unit]
    return steps


@inlined
def turn_back(graph: Graph, state: State, count: int) -> None:
    """Undo the move: loads are as they were, counts are counted back."""
    for device in range(len(state.load)):
        state.load[device] = state.load_before[device]
    for index in range(count):
        unit, home = state.moved[index], state.target[index]
        target = state.home[unit]
        state.home[unit] = home
        for place in range(graph.used_start[unit], graph.used_start[unit + 1]):
            state.users[graph.used[place], target] -= 1
            state.users[graph.used[place], home] += 1
        if graph.counts_bytes:
            drop(graph, state, unit, target)
            hold(graph, state, unit, home)


@inlined
def keep(state: State, best: Ints, value: float) -> float:
    """Write down the assignment if its largest load is below a value; the smaller of the two."""
    largest = state.load[0]
    for device in range(1, len(state.load)):
        largest = max(largest, state.load[device])
    if largest >= value:
        return value
    for unit in range(len(best)):
        best[unit] = state.home[unit]
    return largest
