"""The moves of :mod:`.packing_moves`, compiled; importing numba takes a fifth of a second."""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers import compiling, device_bytes
from fxpasses.partitioners.solvers.annealing import graphs
from fxpasses.partitioners.solvers.annealing.graphs import Graph, State
from fxpasses.partitioners.solvers.compiling import cached, inlined
from fxpasses.partitioners.solvers.device_bytes import drop, held_bytes, hold
from fxpasses.partitioners.solvers.reduced.tables import Floats, Ints

__all__ = ["pack"]

ANY_STEP = 1 << 62
"""A step at which all may move."""


@cached(compiling, device_bytes, graphs)
def pack(graph: Graph, state: State, stays: Ints, over: Floats) -> bool:
    """Move units until every budget holds; whether it came to that.

    Args:
        graph: What units need, and what devices have.
        state: An assignment without sums.
        stays: For each step, how many steps what moves stays then.
        over: Room for a number of each device.
    """
    for unit in range(len(state.home)):
        hold(graph, state, unit, state.home[unit])
        state.stamp[unit] = 0  # the step from which on it may move
    for step in range(len(stays)):
        if not _is_over(graph, state, over):
            return True
        unit = _best(graph, state, over, step)
        if unit < 0:  # all that could move has just moved
            unit = _best(graph, state, over, ANY_STEP)
        if unit < 0:
            return False
        drop(graph, state, unit, state.home[unit])
        state.home[unit] = state.target[0]
        hold(graph, state, unit, state.home[unit])
        state.stamp[unit] = step + stays[step]
    return False


@inlined
def _is_over(graph: Graph, state: State, over: Floats) -> bool:
    """By how many bytes each device passes its budget, and whether one does."""
    found = False
    for device in range(len(over)):
        over[device] = max(held_bytes(graph, state, device) - graph.memory[device], 0.0)
        found = found or over[device] > 0.0
    return found


@inlined
def _best(graph: Graph, state: State, over: Floats, step: int) -> int:
    """The unit of the best move of those that may move at a step, and in ``state.target`` where to; -1: there is none.

    The first of those that are as good.
    """
    best, found = math.inf, -1
    for unit in range(len(state.home)):
        source = state.home[unit]
        if over[source] == 0.0 or state.stamp[unit] > step:
            continue
        leaves = _leaves(graph, state, unit, source)
        if leaves == 0.0:
            continue
        here = max(held_bytes(graph, state, source) - leaves - graph.memory[source], 0.0) - over[source]
        for target in range(len(over)):
            if target == source or graph.weight[unit, target] == math.inf:
                continue
            need = held_bytes(graph, state, target) + _enters(graph, state, unit, target)
            after = here + max(need - graph.memory[target], 0.0) - over[target]
            if after < best:
                best, found = after, unit
                state.target[0] = target
    return found


@inlined
def _alone(graph: Graph, state: State, unit: int, device: int, holders: int) -> float:
    """What a unit keeps, with the blocks that so many units on a device hold: itself only, or nobody."""
    size: float = graph.kept[unit]
    for place in range(graph.hold_start[unit], graph.hold_start[unit + 1]):
        if state.holders[graph.hold[place], device] == holders:
            size += graph.shared[graph.hold[place]]
    return size


@inlined
def _leaves(graph: Graph, state: State, unit: int, device: int) -> float:
    """Bytes that a unit would leave free where it is."""
    size = _alone(graph, state, unit, device, 1)
    top = state.top[device]
    if graph.rank[unit] == top and state.ranks[device, top] == 1:
        below = top - 1
        while below > 0 and state.ranks[device, below] == 0:
            below -= 1
        size += graph.sizes[top] - graph.sizes[max(below, 0)]
    return size


@inlined
def _enters(graph: Graph, state: State, unit: int, device: int) -> float:
    """Bytes that a unit would take on another device."""
    size = _alone(graph, state, unit, device, 0)
    if graph.rank[unit] > state.top[device]:
        size += graph.sizes[graph.rank[unit]] - graph.sizes[state.top[device]]
    return size
