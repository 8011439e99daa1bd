"""Moves of free placements: one unit to another device, two that change places, a connected set; compiled."""

from __future__ import annotations

import math

from fxpasses.partitioners.solvers.annealing.graphs import LARGEST, Graph, State
from fxpasses.partitioners.solvers.compiling import Random, below, chance, inlined
from fxpasses.partitioners.solvers.reduced.tables import Ints

__all__ = ["propose", "somewhere"]

SINGLE, SWAP = 0.55, 0.75
"""Below these chances a move takes one unit, or swaps two; else it takes a connected set."""
BESIDE = 0.5
"""How often a unit goes to the device of a neighbour rather than to any."""


@inlined
def somewhere(graph: Graph, home: Ints, random: Random, unit: int) -> int:
    """Where a unit might go: to a neighbour, or anywhere."""
    first, count = graph.near_start[unit], graph.near_start[unit + 1] - graph.near_start[unit]
    if count and chance(random) < BESIDE:
        return home[graph.near[first + below(random, count)]]
    return below(random, graph.weight.shape[1])


@inlined
def _swap(graph: Graph, state: State, random: Random, unit: int) -> int:
    """Propose that two units change places."""
    other = below(random, len(state.home))
    here, there = state.home[unit], state.home[other]
    if here == there or math.isinf(graph.weight[unit, there]) or math.isinf(graph.weight[other, here]):
        return 0
    state.moved[0], state.target[0] = unit, there
    state.moved[1], state.target[1] = other, here
    return 2


@inlined
def _set(graph: Graph, state: State, random: Random, unit: int, target: int, most: int, stamp: int) -> int:
    """Propose that a unit and so many that hang on it and stand beside it go to a device."""
    here = state.home[unit]
    state.moved[0], state.target[0], state.stamp[unit] = unit, target, stamp
    count = 1
    for _ in range(4 * most if most > 1 else 0):
        last = state.moved[below(random, count)]
        first, near = graph.near_start[last], graph.near_start[last + 1] - graph.near_start[last]
        if near == 0:
            break
        other = graph.near[first + below(random, near)]
        if state.home[other] == here and state.stamp[other] != stamp and not math.isinf(graph.weight[other, target]):
            state.moved[count], state.target[count], state.stamp[other] = other, target, stamp
            count += 1
            if count == most:
                break
    return count


@inlined
def propose(graph: Graph, state: State, random: Random, stamp: int) -> int:
    """Write down a move; how many units are in it, 0 where it is none."""
    unit, kind = below(random, len(state.home)), chance(random)
    if SINGLE <= kind < SWAP:
        return _swap(graph, state, random, unit)
    target = somewhere(graph, state.home, random, unit)
    if target == state.home[unit] or math.isinf(graph.weight[unit, target]):
        return 0
    most = 1 if kind < SINGLE else 2 + int(LARGEST * chance(random) ** 3)
    return _set(graph, state, random, unit, target, min(most, LARGEST), stamp)
